//! Reports of external steps, sent with curl, wget or any other HTTP client.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use slipway_protocol::node::external_step::MAX_REPORT_BYTES;
use slipway_protocol::shared::given::Rule;
use slipway_protocol::{ErrorBody, ErrorCode, ExternalStepAck, ExternalStepReport, ExternalStepStatus};

use crate::api::App;
use crate::api::answer::ApiError;
use crate::api::auth::{Peer, RunToken};
use crate::api::body::Unread;
use crate::api::known_body::from_json;
use crate::base::error::Error;
use crate::base::time::now;
use crate::node::reports::refused::Sender;
use crate::node::reports::{external_steps, run_token};
use crate::store::run_tokens::Purpose;

/// Report an external step.
///
/// The token is one that `slipway-server snippet` issued for the node's newest run. The body is JSON, or a form with
/// the same fields. Empty fields of a form count as left out.
#[utoipa::path(post, path = "/v1/report", security(("run" = [])), request_body(content(
        (ExternalStepReport = "application/json"), (ExternalStepReport = "application/x-www-form-urlencoded"))),
    responses((status = 200, body = ExternalStepAck), (status = 400, body = ErrorBody),
        (status = 401, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody),
        (status = 410, body = ErrorBody), (status = 413, body = ErrorBody), (status = 429, body = ErrorBody)))]
pub async fn report(
    State(app): State<Arc<App>>,
    peer: Peer,
    RunToken(token): RunToken,
    headers: HeaderMap,
    unread: Unread,
) -> Result<Json<ExternalStepAck>, ApiError> {
    let done = accept(&app, &token, &headers, unread).await;
    if let Err(error) = &done {
        app.note_refused(("external step", Sender::Run(&token, Purpose::Steps)), &peer, error).await;
    }
    Ok(Json(done?))
}

async fn accept(app: &App, token: &str, headers: &HeaderMap, unread: Unread) -> Result<ExternalStepAck, Error> {
    run_token::admit(&app.store, &app.token_reports, token, Purpose::Steps).await?;
    let body = app.stranger_bodies.read(unread, MAX_REPORT_BYTES).await?;
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let is_json = kind.split(';').next().is_some_and(|kind| kind.trim().eq_ignore_ascii_case("application/json"));
    let report = if is_json { from_json(&body, Rule::Settings)? } else { from_form(&body)? };
    let _turn = app.turn().await?;
    external_steps::store(&app.store, token, report, now()).await
}

fn from_form(body: &[u8]) -> Result<ExternalStepReport, Error> {
    let mut report = ExternalStepReport::default();
    for (key, value) in form_urlencoded::parse(body) {
        // The errors repeat no value and no unknown key, because errors are logged.
        let invalid = |message: String| Error::refused(ErrorCode::InvalidRequest, message);
        let wrong = |what: &str| invalid(format!("the form's {key} is not {what}"));
        let word = value.trim();
        match &*key {
            _ if word.is_empty() => {}
            "name" => report.name = word.to_owned(),
            "label" => report.label = Some(word.to_owned()),
            "logs" => report.logs = Some(value.into_owned()),
            "priority" => report.priority = Some(word.parse().map_err(|_| wrong("a number from 0 to 65535"))?),
            "percent" => report.percent = Some(word.parse().map_err(|_| wrong("a number from 0 to 100"))?),
            "status" => {
                report.status = Some(ExternalStepStatus::from_word(word).ok_or_else(|| wrong("init, done or failed"))?);
            }
            _ => {
                let fields = "name, label, priority, status, percent and logs";
                return Err(invalid(format!("the form has an unknown field; the fields of a report are {fields}")));
            }
        }
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_is_a_report() {
        let report =
            from_form(b"name=part%0A&label=&status=done&percent=50&priority=7&logs=a+b%0Ac%25&").expect("a form");
        let expect = ExternalStepReport {
            name: "part".to_owned(),
            label: None,
            priority: Some(7),
            status: Some(ExternalStepStatus::Done),
            percent: Some(50),
            logs: Some("a b\nc%".to_owned()),
        };
        assert_eq!(report, expect);
        assert_eq!(from_form(b"").expect("no form").name, "");
        let check = |form: &[u8], expect: &str| {
            assert_eq!(from_form(form).expect_err("refused").to_string(), expect);
        };
        check(b"name=a&status=none", "the form's status is not init, done or failed");
        check(b"percent=1000", "the form's percent is not a number from 0 to 100");
        let unknown = "the form has an unknown field; the fields of a report are name, label, priority, status, \
                       percent and logs";
        check(b"nmae=a", unknown);
        check(b"\xff=\xfe", unknown);
    }
}
