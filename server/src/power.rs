//! Switches machines on and off.
//!
//! What is asked for is stored before it is done, and one server of the site at a time does it. How far it is gets
//! stored before and after each call of a hook, so that a server that is killed leaves nothing unknown: the next one
//! waits until the hook that was running has ended, looks whether the machine is on, and goes on from there.

pub mod ask;
pub mod hook;
pub mod keep;
mod next;
pub mod password;
pub mod provider;
pub mod qemu;
pub mod redfish;
pub mod wanted;
