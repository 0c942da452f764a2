//! The OpenAPI document, generated from the handlers and the protocol's types. A test compares it with `openapi.json`
//! next to `src`, so that reviewers see every change to the API.

mod rules;

use axum::Json;
use serde_json::Value;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityScheme};
use utoipa::{Modify, OpenApi};

#[derive(OpenApi)]
#[openapi(
    info(title = "slipway", description = "Enrols machines, gives them workflows, and shows the state of each."),
    paths(
        super::enrol::enrol,
        super::enrol::renew,
        super::node::workflow,
        super::node::events,
        super::node::logs,
        super::node::heartbeat,
        super::node::inventory,
        super::node::time,
        super::capture::begin,
        super::capture::put,
        super::capture::commit,
        super::recovery_keys::store,
        super::phone_home::by_token,
        super::phone_home::by_instance,
        super::metadata::by_token,
        super::metadata::by_header,
        super::external_report::report,
        super::agent::register,
        super::agent::heartbeat,
        super::agent::leave,
        super::agent::boot,
        super::agent::logs,
        super::boot_report::known,
        super::boot_report::report,
        super::boot_report::logs,
        super::images::get,
        super::boot::script,
        super::boot::file,
        super::operator::nodes,
        super::operator::add_node,
        super::operator::node,
        super::operator::change_node,
        super::operator::remove_node,
        super::operator::release,
        super::operator::replace,
        super::operator::decommission,
        super::operator::recommission,
        super::tasks::list,
        super::tasks::ask,
        super::tasks::cancel,
        super::tasks::remove_agent,
        super::tasks::reboot,
        super::power::show,
        super::power::change,
        super::power::switch,
        super::operator::runs::start_run,
        super::operator::runs::runs_of_node,
        super::operator::log,
        super::operator::boots,
        super::operator::attestation,
        super::operator::metadata_url,
        super::operator::runs::all_runs,
        super::operator::runs::cancel_run,
        super::operator::runs::confirm_run,
        super::operator::runs::retry_run,
        super::operator::runs::run,
        super::operator::runs::run_workflow,
        super::operator::runs::compare_runs,
        super::operator::runs::events,
        super::history::site_events,
        super::boot_files::make,
        super::boot_files::newest,
        super::operator::images,
        super::operator::remove_image,
        super::operator::systems,
        super::operator::add_system,
        super::operator::remove_system,
        super::operator::add_token,
        super::operator::tokens,
        super::operator::revoke_token,
        super::operator::operators,
        super::operator::add_operator,
        super::operator::remove_operator,
        super::operator::rotate_operator,
        super::operator::site,
        super::operator::limits,
        super::operator::set_limit,
        super::operator::reset_limit,
        super::health::alive,
        super::health::ready,
        super::metrics::for_operators,
    ),
    // Used only in a query, where utoipa does not find it.
    components(schemas(crate::operate::LogType)),
    modifiers(&Security, &Tags)
)]
struct Document;

struct Security;

impl Modify for Security {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let scheme = |description: &str| {
            let mut http = Http::new(HttpAuthScheme::Bearer);
            http.description = Some(description.to_owned());
            SecurityScheme::Http(http)
        };
        let components = document.components.get_or_insert_default();
        components.add_security_scheme(
            "node",
            scheme("The node's JWT. Alternatively, no header and the node's TLS client certificate."),
        );
        components.add_security_scheme("run", scheme("A token of the run, valid for reports of one kind."));
        components.add_security_scheme("agent", scheme("The token of an installed system's agent."));
        components.add_security_scheme("operator", scheme("An operator's token."));
    }
}

/// Tags by path prefix. The first match applies.
const TAGS: [(&str, &str); 10] = [
    ("/v1/operator/", "operators"),
    ("/v1/node/", "machines"),
    ("/v1/enrol", "machines"),
    ("/v1/time", "machines"),
    ("/boot/", "files"),
    ("/images/", "files"),
    ("/healthz", "monitoring"),
    ("/readyz", "monitoring"),
    ("/metrics", "monitoring"),
    ("/", "installed systems"),
];

struct Tags;

impl Modify for Tags {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        for (path, item) in &mut document.paths.paths {
            let Some((_, tag)) = TAGS.iter().find(|(start, _)| path.starts_with(start)) else { continue };
            let operations = [&mut item.get, &mut item.post, &mut item.put, &mut item.patch, &mut item.delete];
            operations.into_iter().flatten().for_each(|operation| operation.tags = Some(vec![(*tag).to_owned()]));
        }
    }
}

/// Returns the OpenAPI document.
pub fn document() -> Value {
    // A utoipa document can always be serialised.
    let mut document = serde_json::to_value(Document::openapi()).unwrap_or_default();
    rules::apply(&mut document);
    document
}

/// Serves `GET /v1/openapi.json`.
pub async fn get() -> Json<Value> {
    Json(document())
}
