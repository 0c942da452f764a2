//! Boot files and iPXE scripts: everything that the plain HTTP listener serves.

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path as FilePath};
use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderMap, Method};
use axum::response::{IntoResponse, Response};
use serde::Deserialize;
use slipway_parts::PROGRAM;
use slipway_protocol::{BootWay, ErrorBody, ErrorCode, Identity};

use crate::api::App;
use crate::api::answer::{ApiError, UrlPath, UrlQuery};
use crate::api::auth::Peer;
use crate::api::files::{self, Content, Served};
use crate::base::error::Error;
use crate::base::time::now;
use crate::boot_files::follow;
use crate::node::admission;
use crate::node::reports::node_state::known_to_loader;
use crate::rules::ipxe::{self, Known};
use crate::store::boot_fetches::Fetched;
use crate::store::nodes::{self, Node};
use utoipa::IntoParams;

/// What iPXE knows about its machine. Anyone may send this: a caller that knows all identifiers of a node learns only
/// whether it installs.
#[derive(Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
pub struct Machine {
    uuid: Option<String>,
    serial: Option<String>,
    mac: Option<String>,
    /// iPXE's `buildarch`: `x86_64`, `i386` or `arm64`.
    arch: Option<String>,
}

/// Get the iPXE script of a machine. Without `arch`, the answer is a script that repeats the request with all
/// parameters.
#[utoipa::path(get, path = "/boot/ipxe", params(Machine), responses(
    (status = 200, content_type = "text/plain"), (status = 429, body = ErrorBody)))]
pub async fn script(
    State(app): State<Arc<App>>,
    peer: Peer,
    method: Method,
    UrlQuery(machine): UrlQuery<Machine>,
) -> Result<Response, ApiError> {
    let Some(arch) = machine.arch.clone() else { return Ok(text(ipxe::FIRST.to_owned())) };
    let (known, node) = known(&app, machine).await?;
    let place = match (app.boot.as_deref(), ipxe::arch(&arch)) {
        (Some(boot), Some(arch)) => Some(follow::place_for(&app.store, boot, arch).await?),
        _ => None,
    };
    let script = ipxe::script(&known, &arch, place.as_deref());
    if method == Method::GET {
        app.boot_fetches.fetched(Fetched {
            at: now(),
            address: peer.address.ip(),
            file: "ipxe".to_owned(),
            bytes: script.len() as u64,
            way: BootWay::IpxeScript,
            to_disk: ipxe::boots_from_disk(&known),
            node,
        });
    }
    Ok(text(script))
}

/// Returns what is known about the machine with these identifiers, and the id of its node. iPXE knows only one network
/// card, which need not be among the registered ones if a UUID or serial number is registered too.
async fn known(app: &App, machine: Machine) -> Result<(Known, Option<String>), Error> {
    let macs = machine.mac.into_iter().collect();
    let found = Identity { uuid: machine.uuid, serial: machine.serial, macs }.usable();
    let mut connection = app.store.read().await?;
    let is_it = |node: &Node| {
        let mut registered = node.identity.usable();
        if registered.uuid.is_some() || registered.serial.is_some() {
            registered.macs.clear();
        }
        admission::matches(&registered, &found)
    };
    let mut nodes = nodes::matching(&mut connection, &found).await?;
    nodes.retain(is_it);
    let Some(node) = nodes.pop().filter(|_| nodes.is_empty()) else {
        return Ok((Known::No, None));
    };
    Ok((known_to_loader(&mut connection, &node).await?, Some(node.id)))
}

fn text(script: String) -> Response {
    ([(CONTENT_TYPE, "text/plain; charset=utf-8"), (CACHE_CONTROL, "no-store")], script).into_response()
}

/// Get a boot file: kernel, initramfs, unified kernel image, or iPXE itself.
#[utoipa::path(get, path = "/boot/{path}", params(("path" = String, Path, description = "Path in the boot folder.")),
    responses((status = 200, content_type = "application/octet-stream"),
        (status = 206, content_type = "application/octet-stream"),
        (status = 404, body = ErrorBody), (status = 416, body = ErrorBody),
        (status = 503, body = ErrorBody, description = "The server still fetches these boot files.")))]
pub async fn file(
    State(app): State<Arc<App>>,
    Extension(way): Extension<BootWay>,
    peer: Peer,
    UrlPath(path): UrlPath<String>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let not_found = || Error::refused(ErrorCode::NotFound, "there is no boot file at this path");
    let folder = app.boot.as_deref().ok_or_else(not_found)?;
    if !stays_inside(&path) {
        return Err(not_found().into());
    }
    let at = folder.join(&path);
    let Some((file, metadata)) = files::open(&at).await?.filter(|(file, _)| !app.data.has(file)) else {
        return Err(follow::not_yet(&app.store, folder, &path).await?.unwrap_or_else(not_found).into());
    };
    // A replaced file has another inode, size or modification time. Files must not be changed in place while served.
    let etag =
        format!("\"{:x}-{:x}-{:x}-{:x}\"", metadata.ino(), metadata.len(), metadata.mtime(), metadata.mtime_nsec());
    let (content, size) = (Content::File(file), metadata.len());
    let served = Served { content, size, etag, cache: "no-cache", content_type: media_type(&at) };
    let (bytes, address) = (served.size, peer.address.ip());
    // The program is fetched by installed systems, not by machines that boot slipway.
    let is_program = FilePath::new(&path).file_name().is_some_and(|name| name == PROGRAM);
    let note = move || {
        if is_program {
            return;
        }
        let (at, to_disk, node) = (now(), false, None);
        app.boot_fetches.fetched(Fetched { at, address, file: path, bytes, way, to_disk, node });
    };
    files::respond_and_tell(served, &headers, Box::new(note)).await
}

/// The media type of a boot file. Firmware uses it to tell a program from an image for a RAM disk (UEFI 2.10, section
/// 24.7.3.2, and IANA's registered media types).
fn media_type(path: &FilePath) -> &'static str {
    match path.extension().and_then(OsStr::to_str) {
        Some("efi") => "application/efi",
        Some("iso") => "application/vnd.efi-iso",
        Some("img") => "application/vnd.efi-img",
        _ => "application/octet-stream",
    }
}

/// Whether the path is relative and has only plain names. Symbolic links inside the folder are followed, because the
/// operator made them.
fn stays_inside(path: &str) -> bool {
    !path.contains('\0') && FilePath::new(path).components().all(|part| matches!(part, Component::Normal(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_do_not_leave_the_boot_folder() {
        assert!(stays_inside("x86_64/vmlinuz"));
        for bad in ["../ca.key", "x86_64/../../ca.key", "/etc/passwd", "./x", "a\0b"] {
            assert!(!stays_inside(bad), "{bad:?}");
        }
    }
}
