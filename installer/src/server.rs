//! Communication with the server: requests, connections, the clock that certificates need, and the machine's key.

pub mod backoff;
pub mod client;
pub mod clock;
pub mod link;
pub mod machine_key;
pub mod reach;
pub mod tls;
pub mod told;
