//! Systems that are made of OSTree deployments, such as Fedora CoreOS and Red Hat CoreOS (OSTree documentation,
//! "Anatomy of an OSTree repository" and "Deployments"): each is a whole system in
//! `/ostree/deploy/OS/deploy/CHECKSUM.SERIAL`, with an /etc of its own. All of one OS share `/ostree/deploy/OS/var`.

use crate::error::Error;
use crate::target::root::TargetRoot;

const SYSTEMS: &str = "ostree/deploy";

/// A deployment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Deployment {
    /// Name of its OS.
    pub(crate) os: String,
    /// Path of its root.
    pub(crate) root: String,
    /// Path of the folder with `var`, which it shares with others.
    pub(crate) state: String,
}

/// Returns the deployments in a file system. A folder without /usr is left over from a deleted deployment.
pub(crate) fn deployments(root: &TargetRoot) -> Result<Vec<Deployment>, Error> {
    let mut deployments = Vec::new();
    for os in root.directories(SYSTEMS)? {
        let state = format!("{SYSTEMS}/{os}");
        for name in root.directories(&format!("{state}/deploy"))? {
            let path = format!("{state}/deploy/{name}");
            if root.exists(&format!("{path}/usr")) {
                deployments.push(Deployment { os: os.clone(), root: path, state: state.clone() });
            }
        }
    }
    Ok(deployments)
}
