//! Problems of a run that are known before its first step, so that they do not stop it after a disk was erased.

use super::{Action, NumberOrName, Origin, Step, StreamImage};
use crate::shared::inventory::Disk;
use crate::shared::printable::two_sizes;
use crate::workflow::disk::DiskHints;

/// A problem that a run will have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Foreseen {
    /// The index of the step that will have the problem, from 0.
    pub step: usize,
    /// What the problem is, and what to do.
    pub problem: String,
}

impl Foreseen {
    /// Returns the step in words, such as `step 2 (stream-image)`.
    pub fn place(&self, steps: &[Step]) -> String {
        let name = steps.get(self.step).map_or("", |step| step.name.as_str());
        format!("step {} ({name})", self.step + 1)
    }

    /// Returns the reason of the failed run: what was checked, and the state of the disks. `has_begun` says whether a
    /// step has begun, for example before a power cut.
    pub fn reason(&self, steps: &[Step], has_begun: bool) -> String {
        let when = match has_begun {
            false => "before the first step; the disks are as they were",
            true => "before the run begins again; the disk may have no system",
        };
        format!("checking {} {when}", self.place(steps))
    }
}

/// A file that a step fetches from one of several URLs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Need<'a> {
    /// The file, in a word or two: "image", "block map".
    pub what: &'static str,
    /// The URLs of the file, which is the same at each.
    pub urls: Vec<&'a str>,
    /// CA certificates in PEM for these URLs.
    pub ca: Option<&'a str>,
}

impl Action {
    /// Returns the files that the action fetches.
    pub fn needs(&self) -> Vec<Need<'_>> {
        match self {
            Action::StreamImage(image) => {
                let map =
                    image.bmap.iter().map(|url| Need { what: "block map", urls: vec![url], ca: image.ca.as_deref() });
                of_origin(&image.origin()).into_iter().chain(map).collect()
            }
            Action::UnpackArchive(archive) => of_origin(&archive.origin()),
            Action::WriteFile(file) => file.origin().map(|origin| of_origin(&origin)).unwrap_or_default(),
            _ => Vec::new(),
        }
    }

    /// Returns all URLs of [`Self::needs`], to be changed in place.
    pub fn urls_mut(&mut self) -> Vec<&mut String> {
        let mut urls: Vec<&mut String> = Vec::new();
        let (sums, signature) = match self {
            Action::StreamImage(image) => {
                urls.push(&mut image.url);
                urls.extend(image.mirrors.iter_mut().chain(&mut image.bmap));
                (&mut image.sums, &mut image.signature)
            }
            Action::UnpackArchive(archive) => {
                urls.push(&mut archive.url);
                urls.extend(&mut archive.mirrors);
                (&mut archive.sums, &mut archive.signature)
            }
            Action::WriteFile(file) => {
                urls.extend(file.url.iter_mut().chain(&mut file.mirrors));
                (&mut file.sums, &mut file.signature)
            }
            _ => return urls,
        };
        urls.extend(sums.iter_mut().chain(signature.iter_mut().map(|signature| &mut signature.url)));
        urls
    }

    /// Whether the action destroys what is on a disk.
    pub fn destroys(&self) -> bool {
        matches!(self, Action::EraseDisk(_) | Action::StreamImage(_) | Action::Partition(_) | Action::MakeFileSystem(_))
    }
}

fn of_origin<'a>(origin: &Origin<'a>) -> Vec<Need<'a>> {
    let other = |what, url| Need { what, urls: vec![url], ca: origin.ca };
    let sums = origin.sums.map(|url| other("list of sums", url));
    let signature = origin.signature.map(|signature| other("signature", signature.url.as_str()));
    let itself = Need { what: origin.what, urls: origin.places().collect(), ca: origin.ca };
    std::iter::once(itself).chain(sums).chain(signature).collect()
}

/// Returns the first step whose image is larger than its disk. `raw_size` returns the size of the raw image in bytes,
/// and `disk` the disk that hints select, if known. The search ends at a step that makes partitions, because the disks
/// are different after it.
pub fn too_small(
    steps: &[Step],
    raw_size: impl Fn(&StreamImage) -> Option<u64>,
    disk: impl Fn(&DiskHints) -> Option<Disk>,
) -> Option<Foreseen> {
    let stays = |(_, step): &(usize, &Step)| !matches!(step.action, Action::Partition(_));
    steps.iter().enumerate().take_while(stays).find_map(|(index, step)| {
        let Action::StreamImage(image) = &step.action else { return None };
        let (needed, disk) = raw_size(image).zip(disk(&image.disk))?;
        let (has, needs) = two_sizes(disk.size, needed);
        let path = &disk.path;
        let problem =
            format!("the disk {path} has {has}, but the image needs {needs}; use a larger disk, or another image");
        (disk.size < needed).then_some(Foreseen { step: index, problem })
    })
}

/// Returns the first step that names a partition by a number that the image of the earlier step does not have.
/// `numbers` returns the numbers of all partitions of an image, if known.
pub fn without_partition(steps: &[Step], numbers: impl Fn(&StreamImage) -> Option<Vec<u32>>) -> Option<Foreseen> {
    let keeps_partitions = |action: &Action| {
        use Action::{BootReporter, EfiBootOrder, KernelArgs, UnpackArchive, WriteFile};
        matches!(action, WriteFile(_) | UnpackArchive(_) | KernelArgs(_) | BootReporter(_) | EfiBootOrder(_))
    };
    steps.iter().enumerate().find_map(|(index, step)| {
        let (disk, partition) = match &step.action {
            Action::WriteFile(file) => (&file.disk, &file.partition),
            Action::UnpackArchive(archive) => (&archive.disk, &archive.partition),
            _ => return None,
        };
        let Some(NumberOrName::Number(number)) = partition else { return None };
        let before = steps.iter().take(index).rfind(|step| !keeps_partitions(&step.action))?;
        let Action::StreamImage(image) = &before.action else { return None };
        let known = numbers(image).filter(|known| image.disk == *disk && !known.contains(number))?;
        let known: Vec<String> = known.iter().map(u32::to_string).collect();
        let known = known.join(", ");
        let problem = format!("the image has no partition {number}; give one of {known}");
        Some(Foreseen { step: index, problem })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workflow::{EraseDisk, Location, WriteFile};

    fn step(action: Action) -> Step {
        Step { name: "s".to_owned(), action, retries: 0, timeout: None }
    }

    fn image(raw_size: Option<u64>) -> Step {
        step(Action::StreamImage(StreamImage { raw_size, ..StreamImage::default() }))
    }

    #[test]
    fn an_image_is_compared_with_the_disk_that_is_chosen_now() {
        let erase = || step(Action::EraseDisk(EraseDisk::default()));
        let disk = |_: &DiskHints| Some(Disk { path: "/dev/vda".to_owned(), size: 3 << 30, ..Disk::default() });
        let check = |steps: &[Step]| too_small(steps, |image| image.raw_size, disk);
        let problem = "the disk /dev/vda has 3 GiB, but the image needs 4 GiB; use a larger disk, or another image";
        let expect = Foreseen { step: 1, problem: problem.to_owned() };
        assert_eq!(check(&[erase(), image(Some(4 << 30))]), Some(expect.clone()));
        let steps = [erase(), image(None)];
        assert_eq!(
            expect.reason(&steps, false),
            "checking step 2 (s) before the first step; the disks are as they were"
        );
        let again = "checking step 2 (s) before the run begins again; the disk may have no system";
        assert_eq!(expect.reason(&steps, true), again);
        for steps in [vec![image(Some(3 << 30))], vec![image(None)], vec![erase()]] {
            assert_eq!(check(&steps), None, "{steps:?}");
        }
        assert_eq!(too_small(&[image(Some(1))], |image| image.raw_size, |_| None), None);
        let partition = serde_json::from_str(r#"{"partition": {"partitions": [{"size": "rest", "type": "linux"}]}}"#);
        let partition = step(partition.expect("a partition step"));
        assert_eq!(check(&[partition, image(Some(4 << 30))]), None, "it may be for an array that is made first");
    }

    #[test]
    fn a_number_of_a_partition_is_one_of_the_image_before() {
        let steps = |steps: &str| serde_json::from_str::<Vec<Step>>(&format!("[{steps}]")).expect("steps");
        let step = |action: &str| format!(r#"{{"name": "s", "action": {action}}}"#);
        let image = step(r#"{"stream-image": {"url": "/x"}}"#);
        let on_other = step(r#"{"stream-image": {"url": "/x", "disk": {"serial": "A"}}}"#);
        let write = |number: &str| {
            step(&format!(r#"{{"write-file": {{"path": "/a", "content": "b", "partition": {number}}}}}"#))
        };
        let unpack = step(r#"{"unpack-archive": {"url": "/y", "partition": 7}}"#);
        let script = step(r#"{"run-in-target": {"script": "true"}}"#);
        let problem = "the image has no partition 7; give one of 1, 14".to_owned();
        for (text, expect) in [
            (format!("{image}, {}", write("7")), Some(1)),
            (format!("{image}, {}, {unpack}", write("14")), Some(2)),
            (format!("{image}, {}", write(r#""7""#)), None),
            (format!("{image}, {script}, {unpack}"), None),
            (format!("{on_other}, {unpack}"), None),
            (format!("{image}, {on_other}, {unpack}"), None),
            (unpack.clone(), None),
        ] {
            let found = without_partition(&steps(&text), |_| Some(vec![1, 14]));
            let expect = expect.map(|step| Foreseen { step, problem: problem.clone() });
            assert_eq!(found, expect, "{text}");
        }
        assert_eq!(without_partition(&steps(&format!("{image}, {unpack}")), |_| None), None);
    }

    #[test]
    fn a_step_needs_one_place_of_each_file() {
        let text = r##"{"stream-image": {"url": "https://a/x", "mirrors": ["https://b/x"], "sums": "https://a/SUMS",
                        "bmap": "https://a/x.bmap"}}"##;
        let action: Action = serde_json::from_str(text).expect("an action");
        let needs: Vec<(&str, Vec<&str>)> = action.needs().into_iter().map(|need| (need.what, need.urls)).collect();
        let expect = [
            ("image", vec!["https://a/x", "https://b/x"]),
            ("list of sums", vec!["https://a/SUMS"]),
            ("block map", vec!["https://a/x.bmap"]),
        ];
        assert_eq!(needs, expect);
        assert_eq!(Action::WriteFile(WriteFile::default()).needs(), []);
        let signed = r#""url": "a", "mirrors": ["b", "c"], "sums": "d", "signature": {"url": "e", "public_key": "k"}"#;
        for rest in
            [r#"stream-image": {"bmap": "f""#, r#"unpack-archive": {"partition": 1"#, r#"write-file": {"path": "/x""#]
        {
            let mut action: Action = serde_json::from_str(&format!(r#"{{"{rest}, {signed}}}}}"#)).expect(rest);
            let mut urls: Vec<String> = action.urls_mut().into_iter().map(|url| url.clone()).collect();
            let needs = action.needs();
            let mut needed: Vec<&str> = needs.iter().flat_map(|need| need.urls.clone()).collect();
            urls.sort();
            needed.sort_unstable();
            assert!(urls == needed && urls.len() > 4, "{rest}: {urls:?}, {needed:?}");
        }
        for (url, expect) in [("https://a/x", true), ("/x", true), ("file:///x", true), ("oci://r/x:1", false)] {
            assert_eq!(Location::is_plain(url), expect, "{url}");
        }
    }
}
