//! Forms that add something.

use std::collections::BTreeMap;
use std::str::FromStr as _;
use std::sync::Arc;

use axum::Extension;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use slipway_parts::Arch;
use slipway_protocol::shared::{duration, printable};
use slipway_protocol::{Agent, DiskChoice, DiskHints, ErrorCode, Identity, NodeClass, Proof};

use crate::base::error::Error;
use crate::base::time::utc;
use crate::image::stored;
use crate::operate::{self, NewNode};
use crate::page::answer::{Failed, Html, see_other};
use crate::page::frame::{Follows, Frame};
use crate::page::live::Live;
use crate::page::session::{Act, Fields, Visitor};
use crate::page::words;
use crate::rules::drain::{self, Recipe};
use crate::rules::limits::Changes;
use crate::store::images::Image;
use crate::store::systems::{self, System};

/// What a machine must prove: word, title.
const PROOFS: [(&str, &str); 3] =
    [("registered", "its identifiers"), ("token", "a bootstrap token"), ("attested", "its TPM")];

/// Which of several disks: word, title.
const DISKS: [(&str, &str); 3] =
    [("only", "none: the run fails before it writes"), ("smallest", "the smallest"), ("largest", "the largest")];

fn required(fields: &Fields) -> Markup {
    html! {
        label { "Its machine must prove"
            select name="require" {
                @for (word, title) in PROOFS {
                    option value=(word) selected[fields.text("require") == word] { (title) }
                }
            }
        }
    }
}

fn class(fields: &Fields) -> Markup {
    let title = |class: NodeClass| match class {
        NodeClass::Persistent => "persistent: its system stays until you install another one",
        NodeClass::Ephemeral => "ephemeral: its system is reinstalled whenever the machine boots slipway",
        NodeClass::Spot => "spot: the machine may be taken away, and its silence is not flagged",
    };
    html! {
        label { "Class"
            select name="class" {
                @for class in NodeClass::ALL {
                    option value=(class.name()) selected[class_of(fields) == class] { (title(class)) }
                }
            }
        }
    }
}

fn class_of(fields: &Fields) -> NodeClass {
    let class = NodeClass::ALL.into_iter().find(|class| class.name() == fields.text("class"));
    class.unwrap_or_default()
}

fn proof_of(fields: &Fields) -> Proof {
    match fields.text("require") {
        "attested" => Proof::Attested,
        "token" => Proof::Token,
        _ => Proof::Registered,
    }
}

/// Why a form was refused, above it. What was typed stays.
pub fn refused(problem: Option<&Error>) -> Markup {
    html! { @if let Some(problem) = problem { p.error role="alert" { (words::prose(&problem.body().message)) } } }
}

/// Sends the form, or what is in its place, after a refusal that the operator can do something about. Fails otherwise.
pub fn again(error: Error, form: impl FnOnce(&Error) -> Html) -> Result<Response, Failed> {
    let status = StatusCode::from_u16(error.body().code.status()).unwrap_or(StatusCode::BAD_REQUEST);
    match &error {
        Error::Refused { .. } => Ok((status, form(&error)).into_response()),
        _ => Err(error.into()),
    }
}

/// A field of one line, with a hint below it.
pub fn field(name: &str, title: &str, hint: &str, fields: &Fields) -> Markup {
    html! {
        label { (title)
            input type="text" name=(name) value=(fields.text(name)) autocomplete="off" spellcheck="false"
                aria-describedby={ (name) "-hint" };
            span.hint id={ (name) "-hint" } { (hint) }
        }
    }
}

/// A box to tick.
pub fn tick(name: &str, title: &str, is_ticked: bool) -> Markup {
    html! { label.tick { input type="checkbox" name=(name) value="1" checked[is_ticked]; " " (title) } }
}

/// The button that sends a form.
pub fn submit(text: &str) -> Markup {
    html! { div { button.first type="submit" { (text) } } }
}

/// Asks for a node.
pub async fn node(visitor: Visitor, Extension(live): Extension<Arc<Live>>) -> Result<Html, Failed> {
    Ok(node_form(&Frame::new(visitor, &live).await?, &Fields::default(), None))
}

fn node_form(frame: &Frame, fields: &Fields, problem: Option<&Error>) -> Html {
    let is_new = problem.is_none();
    let content = html! {
        h1 { "Add a node" }
        (refused(problem))
        form.edit method="post" action="/add/node" {
            (frame.visitor.proof_field())
            (field("name", "Name", "Host name of the node and of the installed system, such as web1.", fields))
            (field("uuid", "UUID", "SMBIOS UUID, such as 4c4c4544-0042-3010-8058-b7c04f503432.", fields))
            (field("serial", "Serial number", "As on the label of the machine.", fields))
            (field("macs", "MAC addresses", "Separated by commas or blanks, such as 52:54:00:12:34:56.", fields))
            (field("site", "Site", "Where it is, by your name for the place. May be left out.", fields))
            (field("labels", "Labels", "Such as rack=12 role=web. May be left out.", fields))
            (tick("release", "Release it: its machine is let in without asking", is_new || fields.ticked("release")))
            (tick(
                "mac_only",
                "Accept MAC addresses alone, which anybody on the network can read and use",
                fields.ticked("mac_only"),
            ))
            (class(fields))
            (required(fields))
            (submit("Add the node"))
        }
    };
    frame.page("/fleet", "Add a node", Follows::Nothing, content)
}

/// Adds a node.
pub async fn add_node(Extension(live): Extension<Arc<Live>>, sent: Act) -> Result<Response, Failed> {
    let Act { visitor, fields } = sent;
    let added = match node_of(&fields) {
        Ok(new) => operate::add_node(&visitor.store, new).await,
        Err(error) => Err(error),
    };
    match added {
        Ok(node) => {
            live.has_changed();
            Ok(see_other(&format!("/nodes/{}", node.id), None))
        }
        Err(error) => {
            let frame = Frame::new(visitor, &live).await?;
            again(error, |problem| node_form(&frame, &fields, Some(problem)))
        }
    }
}

/// What a field lists, separated by commas or blanks.
pub fn listed(fields: &Fields, name: &str) -> Vec<String> {
    let parts = fields.text(name).split(|c: char| c == ',' || c.is_whitespace());
    parts.filter(|part| !part.is_empty()).map(str::to_owned).collect()
}

/// Reads the field with labels.
pub fn labels(fields: &Fields) -> Result<BTreeMap<String, String>, Error> {
    let label = |text: String| {
        let pair = text.split_once('=').map(|(key, value)| (key.to_owned(), value.to_owned()));
        let wrong = || Error::refused(ErrorCode::InvalidRequest, format!("{text:?} is not a label such as rack=12"));
        pair.ok_or_else(wrong)
    };
    listed(fields, "labels").into_iter().map(label).collect()
}

fn node_of(fields: &Fields) -> Result<NewNode, Error> {
    Ok(NewNode {
        name: fields.given("name"),
        identity: Identity { uuid: fields.given("uuid"), serial: fields.given("serial"), macs: listed(fields, "macs") },
        release: fields.ticked("release"),
        mac_only: fields.ticked("mac_only"),
        class: class_of(fields),
        require: proof_of(fields),
        ek: Vec::new(),
        site: fields.given("site"),
        labels: labels(fields)?,
    })
}

/// Asks for an operating system.
pub async fn system(visitor: Visitor, Extension(live): Extension<Arc<Live>>) -> Result<Html, Failed> {
    let frame = Frame::new(visitor, &live).await?;
    let images = images(&frame).await?;
    Ok(system_form(&frame, &images, &Fields::default(), None))
}

async fn images(frame: &Frame) -> Result<Vec<Image>, Error> {
    let store = &frame.visitor.store;
    let images = stored::list(store).await?;
    Ok(images.into_iter().filter(|status| status.problem.is_none()).map(|status| status.image).collect())
}

fn system_form(frame: &Frame, images: &[Image], fields: &Fields, problem: Option<&Error>) -> Html {
    let is_new = problem.is_none();
    let area = |name: &str, title: &str, hint: &str| {
        html! {
            label { (title)
                textarea name=(name) spellcheck="false" aria-describedby={ (name) "-hint" } { (fields.text(name)) }
                span.hint id={ (name) "-hint" } { (hint) }
            }
        }
    };
    let content = html! {
        h1 { "Add an operating system" }
        (refused(problem))
        @if images.is_empty() {
            p.teach { "There is no image yet. " a href="/add/image" { "Add an image" } "." }
        }
        form.edit method="post" action="/add/system" {
            (frame.visitor.proof_field())
            (field("name", "Name", "Such as debian-12.", fields))
            label { "Image"
                select name="image" required {
                    @for image in images {
                        option value=(image.digest) selected[fields.text("image") == image.digest.to_string()] {
                            (printable::line(&image.file_name)) " · " (size_of(image)) " · "
                            (image.digest.to_string().chars().take(19).collect::<String>()) "…"
                        }
                    }
                }
            }
            label { "Architecture"
                select name="arch" {
                    option value="" { "what the image shows, or any" }
                    @for arch in Arch::ALL {
                        option value=(arch.name()) selected[fields.text("arch") == arch.name()] { (arch.name()) }
                    }
                }
            }
            (area("user_data", "User-data", "cloud-init or Ignition. May be left out."))
            (area("vendor_data", "Vendor-data", "The site's settings, which user-data overrides. May be left out."))
            (area("ssh_keys", "SSH keys", "Public keys, one a line, that give access to the system."))
            (field("kernel_args", "Kernel arguments", "Added to the boot entries, separated by blanks.", fields))
            label { "Disk, where a machine has several that fit"
                select name="disk" {
                    @for (word, title) in DISKS {
                        option value=(word) selected[fields.text("disk") == word] { (title) }
                    }
                }
            }
            (required(fields))
            (field("known_steps", "External steps that are expected", "Names, separated by blanks.", fields))
            (tick("phone_home", "The installed system reports that it is up", is_new || fields.ticked("phone_home")))
            (tick("boot_reporter", "The installed system reports how its boots go", fields.ticked("boot_reporter")))
            (tick("agent", "An agent stays in it, for draining, rebooting and reinstalling", fields.ticked("agent")))
            (field(
                "drain",
                "What draining does",
                "With an agent: systemd=app.service, podman, docker or kubectl, separated by blanks.",
                fields,
            ))
            (tick(
                "keep_metadata",
                "Its metadata stays readable after it has reported; its user-data then stays on the server",
                fields.ticked("keep_metadata"),
            ))
            (submit("Add the operating system"))
        }
    };
    frame.page("/systems", "Add an operating system", Follows::Nothing, content)
}

fn size_of(image: &Image) -> String {
    printable::size(image.raw_size.unwrap_or(image.size))
}

/// Adds an operating system.
pub async fn add_system(Extension(live): Extension<Arc<Live>>, sent: Act) -> Result<Response, Failed> {
    let Act { visitor, fields } = sent;
    let added = match system_of(&fields) {
        Ok(system) => match is_known(&visitor, &system.name).await {
            // The form does not show what the known one has, so it would be lost unseen.
            Ok(true) => Err(Error::refused(ErrorCode::Conflict, known_already(&system.name))),
            Ok(false) => operate::add_system(&visitor.store, system).await,
            Err(error) => Err(error),
        },
        Err(error) => Err(error),
    };
    match added {
        Ok(_) => Ok(see_other("/systems", None)),
        Err(error) => {
            let frame = Frame::new(visitor, &live).await?;
            let images = images(&frame).await?;
            again(error, |problem| system_form(&frame, &images, &fields, Some(problem)))
        }
    }
}

async fn is_known(visitor: &Visitor, name: &str) -> Result<bool, Error> {
    Ok(systems::get_by_name(&mut *visitor.store.read().await?, name).await?.is_some())
}

fn known_already(name: &str) -> String {
    format!(
        "there is an operating system {name} already: choose another name, or replace it by `slipway-server os add`"
    )
}

fn system_of(fields: &Fields) -> Result<System, Error> {
    let image = fields.text("image").parse();
    let image = image.map_err(|_| Error::refused(ErrorCode::InvalidRequest, "no image is chosen"))?;
    // Browsers send lines that end with CR and LF.
    let text = |name: &str| fields.given(name).map(|text| text.replace("\r\n", "\n") + "\n");
    let words = |name: &str| -> Vec<String> { fields.text(name).split_whitespace().map(str::to_owned).collect() };
    let choose = match fields.text("disk") {
        "smallest" => DiskChoice::Smallest,
        "largest" => DiskChoice::Largest,
        _ => DiskChoice::Only,
    };
    let keys = fields.text("ssh_keys").lines().map(str::trim).filter(|key| !key.is_empty()).map(str::to_owned);
    Ok(System {
        name: fields.text("name").to_owned(),
        image,
        arch: Arch::ALL.into_iter().find(|arch| arch.name() == fields.text("arch")),
        raw_size: None,
        raw_digest: None,
        user_data: text("user_data"),
        vendor_data: text("vendor_data"),
        kernel_args: words("kernel_args"),
        ssh_keys: keys.collect(),
        phone_home: fields.ticked("phone_home"),
        phone_home_post: None,
        phone_home_tries: None,
        allow_override: true,
        boot_reporter: fields.ticked("boot_reporter"),
        agent: agent_of(fields)?,
        keep_metadata: fields.ticked("keep_metadata"),
        known_steps: words("known_steps"),
        require: proof_of(fields),
        disk: DiskHints { choose, ..DiskHints::default() },
        limits: Changes::default(),
    })
}

/// Returns what the agent of an operating system may do, if it has one.
fn agent_of(fields: &Fields) -> Result<Option<Agent>, Error> {
    let invalid = |message: String| Error::refused(ErrorCode::InvalidRequest, message);
    let recipes: Result<Vec<Recipe>, String> = fields.text("drain").split_whitespace().map(Recipe::from_str).collect();
    let recipes = recipes.map_err(invalid)?;
    if !fields.ticked("agent") {
        let message = "what draining does is for an operating system with an agent: tick that too";
        return if recipes.is_empty() { Ok(None) } else { Err(invalid(message.to_owned())) };
    }
    let mut agent = Agent::default();
    drain::add(&mut agent, &recipes);
    Ok(Some(agent))
}

/// Asks for a bootstrap token.
pub async fn token(visitor: Visitor, Extension(live): Extension<Arc<Live>>) -> Result<Html, Failed> {
    Ok(token_form(&Frame::new(visitor, &live).await?, &Fields::default(), None))
}

fn token_form(frame: &Frame, fields: &Fields, problem: Option<&Error>) -> Html {
    let content = html! {
        h1 { "Add a bootstrap token" }
        (refused(problem))
        form.edit method="post" action="/add/token" {
            (frame.visitor.proof_field())
            (field(
                "node",
                "Node",
                "Name or id of the node that the token proves. Without one, it lets one unknown machine in.",
                fields,
            ))
            (field("expires_in", "Expires in", "Such as 90s, 2h or 7d. Without it, the token does not expire.", fields))
            (submit("Make the token"))
        }
    };
    frame.page("/tokens", "Add a token", Follows::Nothing, content)
}

/// Adds a bootstrap token, and shows it once.
pub async fn add_token(Extension(live): Extension<Arc<Live>>, sent: Act) -> Result<Response, Failed> {
    let Act { visitor, fields } = sent;
    let lifetime = fields.given("expires_in").map(|text| duration::parse(&text));
    let lifetime = lifetime.transpose().map_err(|problem| Error::refused(ErrorCode::InvalidRequest, problem));
    // Before the token is made: it can be shown only once.
    let frame = Frame::new(visitor, &live).await?;
    let visitor = &frame.visitor;
    let added = match lifetime {
        Ok(lifetime) => {
            let lifetime = lifetime.map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX));
            operate::add_token(&visitor.store, fields.given("node").as_deref(), lifetime).await
        }
        Err(error) => Err(error),
    };
    match added {
        Ok(issued) => {
            let content = html! {
                h1 { "The token" }
                p { "It is shown only now, because the server stores only its hash." }
                p { (words::command(&issued.token)) }
                @if let Some(at) = issued.expires_at { p { "It expires at " (utc(at)) "." } }
                p { a href="/tokens" { "All tokens" } }
            };
            Ok(frame.page("/tokens", "The token", Follows::Nothing, content).into_response())
        }
        Err(error) => again(error, |problem| token_form(&frame, &fields, Some(problem))),
    }
}
