//! Adds an image: a file that the browser sends, or one at a URL that the server fetches.

use std::sync::Arc;

use axum::Extension;
use axum::extract::{FromRequestParts, Request, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use maud::{Markup, html};
use slipway_protocol::{Algorithm, Digest, ErrorCode};

use crate::api::App;
use crate::api::body::{Patience, Unread};
use crate::base::error::Error;
use crate::image::upload::{Received, Upload};
use crate::image::{self, Known, Progress, Remote};
use crate::page::adding::{Additions, Ending};
use crate::page::answer::{Failed, Html, see_other};
use crate::page::forms::{field, refused, submit, tick};
use crate::page::frame::{Follows, Frame};
use crate::page::live::Live;
use crate::page::multipart::Multipart;
use crate::page::session::{Act, Fields, Visitor, check_origin};
use crate::page::words;

/// Most bytes of a field without a file.
const MOST_TEXT: usize = 4 << 10;

/// Asks for an image.
pub async fn ask(visitor: Visitor, Extension(live): Extension<Arc<Live>>) -> Result<Html, Failed> {
    let frame = Frame::new(visitor, &live).await?;
    Ok(form(&frame, &Fields::default(), None))
}

fn form(frame: &Frame, fields: &Fields, problem: Option<&Error>) -> Html {
    let digest = "As its publisher writes it. The server refuses a file that has another.";
    let other = || {
        let title = "It is another file for actions, such as an archive, and not the image of a disk";
        tick("other", title, fields.ticked("other"))
    };
    let content = html! {
        h1 { "Add an image" }
        (refused(problem))
        section {
            h2 { "From this computer" }
            form.edit method="post" action="/add/image" enctype="multipart/form-data" data-upload {
                (frame.visitor.proof_field())
                (field("sha256", "SHA-256 of the file (may be left out)", digest, fields))
                (other())
                label { "File"
                    input type="file" name="file" required aria-describedby="file-hint";
                    span.hint #file-hint { "Raw or qcow2, plain or compressed. It is checked before machines get it." }
                }
                p data-progress hidden { progress max="100" value="0" aria-label="sent" {} " " span data-said {} }
                (submit("Send the file"))
            }
        }
        section {
            h2 { "From a URL" }
            form.edit method="post" action="/add/image-from-url" {
                (frame.visitor.proof_field())
                (field("url", "URL", "https:// or http://. The server fetches it, and goes on if that stops.", fields))
                label { "SHA-256 of the file"
                    input type="text" name="sha256" value=(fields.text("sha256")) required autocomplete="off"
                        spellcheck="false";
                }
                (other())
                (submit("Fetch the file"))
            }
        }
        p.muted { "Or on the server: " (words::command("slipway-server image add FILE")) }
    };
    frame.page("/images", "Add an image", Follows::Nothing, content)
}

/// The form again, with the reason, if the operator can do something about it.
async fn again(visitor: Visitor, live: &Live, fields: &Fields, error: Error) -> Result<Response, Failed> {
    if !matches!(error, Error::Refused { .. }) {
        return Err(error.into());
    }
    let status = StatusCode::from_u16(error.body().code.status()).unwrap_or(StatusCode::BAD_REQUEST);
    let frame = Frame::new(visitor, live).await?;
    Ok((status, form(&frame, fields, Some(&error))).into_response())
}

fn known(fields: &Fields) -> Result<Known, Error> {
    let digest = fields.given("sha256").map(|text| {
        let text = text.trim().to_lowercase();
        let hex = text.strip_prefix("sha256:").unwrap_or(&text);
        let wrong = |error| Error::refused(ErrorCode::InvalidRequest, format!("the SHA-256 cannot be used: {error}"));
        Digest::new(Algorithm::Sha256, hex).map_err(wrong)
    });
    Ok(Known { digest: digest.transpose()?, is_other: fields.ticked("other"), ..Known::default() })
}

/// Receives a file, and then checks and stores it while the page shows how far that is.
pub async fn receive(
    State(app): State<Arc<App>>,
    Extension(live): Extension<Arc<Live>>,
    Extension(additions): Extension<Arc<Additions>>,
    request: Request,
) -> Result<Response, Failed> {
    let (mut parts, body) = request.into_parts();
    check_origin(&parts.headers)?;
    let visitor = Visitor::from_request_parts(&mut parts, &app).await?;
    let mut sent = Multipart::new(&parts.headers, Unread::of(&parts, body)?, app.limits.stall)?;
    let mut fields = Fields::default();
    let file = loop {
        match sent.next().await? {
            Some(part) => match part.file_name {
                Some(file) => break Some(file),
                None => fields.push(part.name, sent.text(MOST_TEXT).await?),
            },
            None => break None,
        }
    };
    visitor.check_proof(&fields)?;
    if let Some(patience) = parts.extensions.get::<Patience>() {
        patience.grant();
    }
    let total = parts.headers.get(axum::http::header::CONTENT_LENGTH);
    let total = total.and_then(|length| length.to_str().ok()?.parse().ok()).unwrap_or_default();
    let taken = take(&visitor, &additions, &mut sent, &fields, (file.unwrap_or_default(), total)).await;
    match taken {
        Ok((received, known, ending)) => {
            let (store, data) = (visitor.store.clone(), app.data.clone());
            tokio::spawn(async move {
                let addition = Arc::clone(&ending.0);
                let added = received.add(&store, &data, known, move |progress| addition.progress(progress)).await;
                ending.0.end(&added);
                live.has_changed();
            });
            Ok(see_other("/images", None))
        }
        Err(error) => {
            sent.drain().await;
            again(visitor, &live, &fields, error).await
        }
    }
}

/// Takes the file of a form, until all of it is on the disk.
async fn take(
    visitor: &Visitor,
    additions: &Additions,
    sent: &mut Multipart,
    fields: &Fields,
    (file, total): (String, u64),
) -> Result<(Received, Known, Ending), Error> {
    let known = known(fields)?;
    if file.is_empty() {
        return Err(Error::refused(ErrorCode::InvalidRequest, "no file is chosen; choose one, and send it again"));
    }
    let mut upload = Upload::begin(&visitor.app.data, &file)?;
    let ending = Ending(additions.begin(upload.file_name(), &visitor.operator)?);
    while let Some(piece) = sent.piece().await? {
        upload.push(&piece).await?;
        ending.0.progress(Progress { doing: "receiving", done: upload.size(), total });
    }
    let received = upload.complete(known.digest.as_ref()).await;
    if let Err(error) = &received {
        ending.0.fail(error);
    }
    Ok((received?, known, ending))
}

/// Fetches a file from a URL, and then checks and stores it, while the page shows how far that is.
pub async fn fetch(
    Extension(live): Extension<Arc<Live>>,
    Extension(additions): Extension<Arc<Additions>>,
    sent: Act,
) -> Result<Response, Failed> {
    let Act { visitor, fields } = sent;
    let begun = known(&fields).and_then(|known| {
        let missing = || Error::refused(ErrorCode::InvalidRequest, "the SHA-256 of the file is missing");
        let remote = Remote::new(fields.text("url"), known.digest.clone().ok_or_else(missing)?, None)?;
        let ending = Ending(additions.begin(&remote.file_name(), &visitor.operator)?);
        Ok((remote, known, ending))
    });
    let (remote, known, ending) = match begun {
        Ok(begun) => begun,
        Err(error) => return again(visitor, &live, &fields, error).await,
    };
    let (store, data) = (visitor.store.clone(), visitor.app.data.clone());
    tokio::spawn(async move {
        let addition = Arc::clone(&ending.0);
        let added = image::add_remote(&store, &data, &remote, known, move |progress| addition.progress(progress)).await;
        ending.0.end(&added);
        live.has_changed();
    });
    Ok(see_other("/images", None))
}

/// The images that are being added, above those that are there.
pub fn adding(additions: &Additions, now: crate::base::time::Millis) -> Markup {
    html! { div data-sync="adding" { (additions.show(now)) } }
}
