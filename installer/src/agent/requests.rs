//! The requests of the agent.

use std::fs::File;
use std::io::{self, Write as _};
use std::time::Duration;

use reqwest::Method;
use reqwest::header::{CONTENT_ENCODING, CONTENT_TYPE};
use slipway_protocol::{AgentBoot, AgentCredentials, Heartbeat, HeartbeatAnswer};

use crate::server::client::{Ask, Client, ClientError, compress};

impl Client {
    /// Sends `POST /v1/agent` with the token of a run, and returns the agent's own credentials.
    pub async fn agent(&self) -> Result<AgentCredentials, ClientError> {
        let ask = Ask::new("asking for the agent's credentials", Method::POST, "v1/agent");
        let answer = self.send(&ask, |r| r).await?;
        self.read(&ask, answer).await
    }

    /// Sends `POST /v1/agent/heartbeat`, which the server may hold for `wait` seconds.
    pub async fn agent_heartbeat(&self, beat: &Heartbeat, wait: u32) -> Result<HeartbeatAnswer, ClientError> {
        let ask =
            Ask::new("sending a heartbeat", Method::POST, "v1/agent/heartbeat").held(Duration::from_secs(wait.into()));
        let answer = self.send(&ask, |r| r.query(&[("wait", wait)]).json(beat)).await?;
        self.read(&ask, answer).await
    }

    /// Sends `POST /v1/agent/logs`, with the log compressed.
    pub async fn agent_log(&self, boot_id: &str, log: &[u8]) -> Result<(), ClientError> {
        let ask = Ask::new("sending the log of this boot", Method::POST, "v1/agent/logs").patient();
        let body = compress(log);
        let request = |r: reqwest::RequestBuilder| {
            r.query(&[("boot_id", boot_id)])
                .header(CONTENT_ENCODING, "gzip")
                .header(CONTENT_TYPE, "text/plain; charset=utf-8")
                .body(body)
        };
        self.send(&ask, request).await.map(drop)
    }

    /// Sends `DELETE /v1/agent`.
    pub async fn leave(&self) -> Result<(), ClientError> {
        let ask = Ask::new("telling the server that the agent is removed", Method::DELETE, "v1/agent");
        self.send(&ask, |r| r).await.map(drop)
    }

    /// Sends `GET /v1/agent/boot`.
    pub async fn agent_boot(&self, arch: &str) -> Result<AgentBoot, ClientError> {
        let ask = Ask::new("asking what to boot", Method::GET, "v1/agent/boot");
        let answer = self.send(&ask, |r| r.query(&[("arch", arch)])).await?;
        self.read(&ask, answer).await
    }

    /// Fetches a boot file of at most `most` bytes into an open file.
    pub async fn fetch_boot_file(&self, path: &str, file: &mut File, most: u64) -> Result<(), FileError> {
        let ask = Ask::new("fetching a boot file", Method::GET, path).held(Duration::from_secs(600));
        let mut answer = self.send(&ask, |r| r).await?;
        let mut size = 0u64;
        let failed = |error: reqwest::Error| FileError::Io(io::Error::other(error.without_url()));
        while let Some(piece) = answer.chunk().await.map_err(failed)? {
            size += piece.len() as u64;
            if size > most {
                return Err(FileError::Io(io::Error::other(format!("it is larger than {most} bytes"))));
            }
            file.write_all(&piece)?;
        }
        Ok(())
    }
}

/// Why a boot file could not be fetched.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The server did not give it.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// It could not be read to its end, or stored.
    #[error(transparent)]
    Io(#[from] io::Error),
}
