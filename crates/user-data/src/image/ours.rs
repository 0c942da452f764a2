//! The settings that make cloud-init use a seed, whatever the image's own settings are.

use super::{File, Image, NO_CLOUD, Seed, ds_identify, judge};

/// End of the name of the file with our settings.
pub const MARK: &str = "_slipway.cfg";
/// The data sources, in a single line, because ds-identify reads no list over several lines.
const SOURCE: &str = "datasource_list: [ NoCloud, None ]\n";
/// Reverts the image's settings for NoCloud and for other things that a seed needs.
const OTHERS: &str = "datasource: { NoCloud: null }\n\
                      system_info: { paths: { cloud_dir: /var/lib/cloud } }\n\
                      allow_userdata: true\n";
const VENDOR_DATA: &str = "vendor_data: { enabled: true }\n";
const NETWORK: &str = "network: null\n";

impl Image {
    /// Adds our settings, which take precedence over the image's: the data source, and others where the image's own
    /// would be obstacles. Removes our settings for earlier seeds, and two things that no setting can override: a file
    /// that disables cloud-init, and a configuration of ds-identify that does so or names another source. Returns the
    /// name and content of the new file in /etc/cloud/cloud.cfg.d.
    pub fn configure(&mut self, seed: Seed) -> (String, String) {
        self.disabled = None;
        if self.ds_identify.as_ref().is_some_and(replaces) {
            self.ds_identify = None;
        }
        self.parts.retain(|file| !file.path.ends_with(MARK));
        let name = last(&self.parts);
        let path = format!("{}/{name}", super::PARTS);
        self.parts.push(File { path: path.clone(), text: SOURCE.to_owned() });
        if judge(self, seed).0.is_empty() {
            return (name, SOURCE.to_owned());
        }
        let mut text = [SOURCE, OTHERS].concat();
        text.push_str(if seed.has_vendor_data { VENDOR_DATA } else { "" });
        text.push_str(if seed.has_network { NETWORK } else { "" });
        self.parts.pop();
        self.parts.push(File { path, text: text.clone() });
        (name, text)
    }
}

/// Whether a configuration of ds-identify keeps a seed from being taken, so that it must go.
pub fn replaces(config: &File) -> bool {
    let decided = ds_identify::decide(&[], Some(config), &ds_identify::Arguments::default());
    match decided.decision {
        ds_identify::Decision::None => false,
        ds_identify::Decision::Disabled => true,
        ds_identify::Decision::Sources(sources) => sources.iter().all(|source| source != NO_CLOUD),
    }
}

/// A name that sorts after all of these files: by bytes, as cloud-init sorts, and by the rules of languages, as some
/// shells do for ds-identify. These rules compare letters and digits first, and ignore case.
fn last(files: &[File]) -> String {
    let names = files.iter().map(|file| file.path.rsplit('/').next().unwrap_or_default());
    let keys: Vec<String> =
        names.map(|name| name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_lowercase()).collect();
    if keys.iter().all(|key| key.as_str() < "99") {
        return format!("99{MARK}");
    }
    let longest = keys.iter().map(|key| key.chars().take_while(|c| *c == 'z').count()).max().unwrap_or_default();
    format!("{}{MARK}", "z".repeat(longest + 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_sorts_after_all_others() {
        let check = |names: &[&str], expect: &str| {
            let file = |name: &&str| File { path: format!("/etc/cloud/cloud.cfg.d/{name}"), text: String::new() };
            let name = last(&names.iter().map(file).collect::<Vec<_>>());
            assert_eq!(name, expect, "{names:?}");
            assert!(names.iter().all(|other| *other < &*name), "{names:?}");
        };
        check(&[], "99_slipway.cfg");
        check(&["05_logging.cfg", "90_dpkg.cfg"], "99_slipway.cfg");
        check(&["99-installer.cfg"], "zz_slipway.cfg");
        check(&["99_z.cfg", "a.cfg", "B.cfg"], "zz_slipway.cfg");
        check(&["zz-aws.cfg", "Zzz.cfg"], "zzzzz_slipway.cfg");
        check(&["zzzz_local.cfg"], "zzzzzz_slipway.cfg");
    }
}
