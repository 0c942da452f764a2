//! Operating systems: what an operator installs by name.

use serde::{Deserialize, Serialize};
use slipway_parts::Arch;
use slipway_protocol::{Agent, Digest, DiskHints, Proof};

use crate::base::error::Error;
use crate::base::time::Millis;
use crate::rules::limits::Changes;
use crate::rules::phone_home_settings::{PhoneHomeSettings, PostKeys};
use crate::store::{Connection, database, db, json, to_json};

/// An operating system: an image and how it is set up.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = OperatingSystem)]
#[serde(deny_unknown_fields)]
pub struct System {
    /// Its name.
    #[schema(
        pattern = "^[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?(\\.[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?)*$",
        max_length = 253
    )]
    pub name: String,
    /// Digest of the image.
    pub image: Digest,
    /// Architecture of the machines that it is for. Default: what the image shows, or any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arch: Option<Arch>,
    /// Size of the raw image in bytes. Default: the size recorded for the image, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_size: Option<u64>,
    /// Digest of the raw image. Machines check it in addition to the digest of the image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub raw_digest: Option<Digest>,
    /// User-data, for runs that have none of their own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user_data: Option<String>,
    /// Vendor-data: the site's settings, which user-data overrides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vendor_data: Option<String>,
    /// Kernel arguments to add to the installed system's boot entries.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kernel_args: Vec<String>,
    /// Public SSH keys that give access to the system, each a single line.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ssh_keys: Vec<String>,
    /// Whether the installed system reports that it is up. A run can override this.
    #[serde(default)]
    pub phone_home: bool,
    /// What the report contains: `all`, or names of keys, separated by commas. Default: `all`. A run can override this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub phone_home_post: Option<PostKeys>,
    /// How often the system tries to report, 3 s apart. Default: 10. A run can override this.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(minimum = 1)]
    pub phone_home_tries: Option<u32>,
    /// Whether a run may replace the user-data.
    #[serde(default = "allowed")]
    pub allow_override: bool,
    /// Whether the installed system reports the progress of its boots, until it is up.
    #[serde(default)]
    pub boot_reporter: bool,
    /// What the agent of the installed system may do. Absent if the system has no agent. With an agent, it reports the
    /// progress of its boots too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<Agent>,
    /// Whether the installed system's metadata can be read after it reported that it is up, as long as the run is the
    /// newest of its node. Its user-data then stays in the store.
    #[serde(default)]
    pub keep_metadata: bool,
    /// Names of the external steps expected in its runs. If there are any, reports of other steps are stored and
    /// flagged.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub known_steps: Vec<String>,
    /// What a machine must prove before it gets a run of this operating system.
    #[serde(default)]
    pub require: Proof,
    /// Limits for its runs and its installed system, in place of the site's, by their names.
    #[serde(default, skip_serializing_if = "Changes::is_empty")]
    pub limits: Changes,
    /// Hints for the disk to install on.
    #[serde(default, skip_serializing_if = "DiskHints::is_empty")]
    pub disk: DiskHints,
}

fn allowed() -> bool {
    true
}

impl System {
    /// Returns the system's phone-home settings.
    pub fn reporting(&self) -> PhoneHomeSettings {
        PhoneHomeSettings {
            on: Some(self.phone_home),
            post: self.phone_home_post.clone(),
            tries: self.phone_home_tries,
        }
    }
}

/// Stores an operating system, replacing one with the same name.
pub async fn save(connection: &mut Connection, system: &System, now: Millis) -> Result<(), Error> {
    let sql = "INSERT INTO systems (name, system_json, added_at) VALUES ($1, $2, $3) \
               ON CONFLICT (name) DO UPDATE SET system_json = excluded.system_json";
    let query = db::query(sql).bind(&system.name).bind(to_json(system)).bind(now.cast_signed());
    query.execute(connection).await.map(drop).map_err(database("storing an operating system"))
}

/// Returns the system with this name.
pub async fn get_by_name(connection: &mut Connection, name: &str) -> Result<Option<System>, Error> {
    let query = db::query("SELECT system_json FROM systems WHERE name = $1").bind(name);
    let row = query.fetch_optional(connection).await.map_err(database("reading an operating system"))?;
    row.map(|row| json(&row, "system_json")).transpose()
}

/// Returns all operating systems, by name.
pub async fn all(connection: &mut Connection) -> Result<Vec<System>, Error> {
    let rows = db::query("SELECT system_json FROM systems ORDER BY name").fetch_all(connection).await;
    let rows = rows.map_err(database("reading the operating systems"))?;
    rows.iter().map(|row| json(row, "system_json")).collect()
}

/// Removes the operating system with this name. Returns whether it existed.
pub async fn remove(connection: &mut Connection, name: &str) -> Result<bool, Error> {
    let done = db::query("DELETE FROM systems WHERE name = $1").bind(name).execute(connection).await;
    Ok(done.map_err(database("removing an operating system"))? > 0)
}
