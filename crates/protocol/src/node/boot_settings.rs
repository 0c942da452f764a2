//! What a boot medium tells its machine: where the server is, and how to recognise it. Who makes a medium and the machine
//! that starts from it judge the values by the same functions.

mod hosts;

pub use hosts::{Proxy, check_ca, check_proxy, check_server};
