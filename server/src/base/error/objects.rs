//! Why a request to an object store failed.

/// Why a request to an object store failed, and what to do about it if known.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct ObjectsFault {
    message: String,
    is_transient: bool,
}

impl ObjectsFault {
    /// A fault that somebody must correct.
    pub fn new(message: impl Into<String>) -> Self {
        Self { message: message.into(), is_transient: false }
    }

    /// A fault that may be gone at the next attempt.
    pub fn transient(message: impl Into<String>) -> Self {
        Self { message: message.into(), is_transient: true }
    }

    /// Whether the same request may succeed a little later.
    pub fn is_transient(&self) -> bool {
        self.is_transient
    }
}
