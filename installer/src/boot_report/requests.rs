//! The requests of the boot reporter.

use reqwest::Method;
use slipway_protocol::{BootKnown, BootReport};

use crate::server::client::{Ask, Client, ClientError, compress};

impl Client {
    /// Sends `GET /v1/boot-report`, and returns what the server knows about this boot.
    pub async fn boot_known(&self) -> Result<BootKnown, ClientError> {
        let ask = Ask::new("asking what the server knows about this boot", Method::GET, "v1/boot-report");
        let answer = self.send(&ask, |r| r).await?;
        self.read(&ask, answer).await
    }

    /// Sends `POST /v1/boot-report`, and returns what the server knows about this boot.
    pub async fn boot_report(&self, report: &BootReport) -> Result<BootKnown, ClientError> {
        let ask = Ask::new("reporting this boot", Method::POST, "v1/boot-report");
        let answer = self.send(&ask, |r| r.json(report)).await?;
        self.read(&ask, answer).await
    }

    /// Sends `POST /v1/boot-report/logs`, with the log compressed.
    pub async fn boot_log(&self, boot_id: &str, log: &[u8]) -> Result<(), ClientError> {
        let ask = Ask::new("sending the log of this boot", Method::POST, "v1/boot-report/logs").patient();
        let body = compress(log);
        let request = |r: reqwest::RequestBuilder| {
            r.query(&[("boot_id", boot_id)])
                .header(reqwest::header::CONTENT_ENCODING, "gzip")
                .header(reqwest::header::CONTENT_TYPE, "text/plain; charset=utf-8")
                .body(body)
        };
        self.send(&ask, request).await.map(drop)
    }
}
