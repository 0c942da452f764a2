//! Manifests of artifacts in registries (OCI image specification, manifest.md and image-index.md), and tokens (CNCF
//! Distribution, "Token Authentication Specification").

use serde_json::Value;
use slipway_protocol::Digest;

/// Configuration types of container images. Their layers are archives of files, not disk images.
const CONTAINER: [&str; 2] =
    ["application/vnd.oci.image.config.v1+json", "application/vnd.docker.container.image.v1+json"];
const TITLE: &str = "org.opencontainers.image.title";

/// The wanted part of an artifact.
#[derive(Debug, PartialEq, Eq)]
pub struct Blob {
    /// Digest of its content.
    pub digest: Digest,
    /// Size in bytes.
    pub size: u64,
}

/// The token in the response of a token server, which may use either of two names.
pub fn token(answer: &[u8]) -> Option<String> {
    let answer: Value = serde_json::from_slice(answer).ok()?;
    let named = |name| answer.get(name)?.as_str().filter(|token: &&str| !token.is_empty());
    Some(named("token").or_else(|| named("access_token"))?.to_owned())
}

/// The only manifest of an index for Linux on this architecture, or the index's only manifest if it names no platform.
pub fn of_platform(index: &[Value], architecture: &str) -> Result<Digest, String> {
    let field = |entry: &Value, name: &str| {
        entry.get("platform").and_then(|platform| platform.get(name)).and_then(Value::as_str).map(str::to_owned)
    };
    let wanted = format!("linux/{architecture}");
    let platforms: Vec<String> = index
        .iter()
        .map(|entry| match (field(entry, "os"), field(entry, "architecture")) {
            (Some(os), Some(architecture)) => format!("{os}/{architecture}"),
            _ => "any".to_owned(),
        })
        .collect();
    let mut matching = index.iter().zip(&platforms).filter(|(_, platform)| **platform == wanted);
    let only = index.first().filter(|_| platforms == ["any"]);
    match (matching.next(), matching.next(), only) {
        (Some((entry, _)), None, _) | (None, None, Some(entry)) => digest_of(entry),
        (None, ..) if index.is_empty() => Err("its index lists no manifests".to_owned()),
        (None, ..) => Err(format!("it has nothing for {wanted}, only for {}", first_few(&platforms))),
        (Some(_), Some(_), _) => Err(format!("it has several manifests for {wanted}: select one by its digest")),
    }
}

/// The wanted layer of a manifest: the one with this title, or the only one.
pub fn blob(manifest: &Value, title: Option<&str>) -> Result<Blob, String> {
    let config = manifest.get("config").and_then(|config| config.get("mediaType")).and_then(Value::as_str);
    if config.is_some_and(|config| CONTAINER.contains(&config)) {
        return Err(
            "it is a container image, not a file; push the file as an artifact, for example with oras push".to_owned()
        );
    }
    let layers = manifest.get("layers").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    let title_of = |layer: &Value| {
        let title = layer.get("annotations").and_then(|annotations| annotations.get(TITLE)).and_then(Value::as_str);
        title.unwrap_or("without a title").to_owned()
    };
    let mut matching = layers.iter().filter(|layer| title.is_none_or(|title| title_of(layer) == title));
    match (matching.next(), matching.next()) {
        (Some(layer), None) => {
            let size = layer.get("size").and_then(Value::as_u64).ok_or("its manifest does not say how large it is")?;
            Ok(Blob { digest: digest_of(layer)?, size })
        }
        (None, _) if layers.is_empty() => Err("it has no files".to_owned()),
        (found, _) => {
            let titles: Vec<String> = layers.iter().map(title_of).collect();
            let which = if found.is_some() { "several files" } else { "no file with that title" };
            Err(format!(
                "it has {which}; its files are {}: select one with #TITLE at the end of the URL",
                first_few(&titles)
            ))
        }
    }
}

fn digest_of(descriptor: &Value) -> Result<Digest, String> {
    let text = descriptor.get("digest").and_then(Value::as_str).ok_or("its manifest has an entry without a digest")?;
    text.parse().map_err(|error| format!("its manifest has an entry with an invalid digest: {error}"))
}

/// Lists some texts from a registry, shortened, as there may be many and they may be long.
fn first_few(texts: &[String]) -> String {
    const SHOWN: usize = 5;
    const LONGEST: usize = 64;
    let shown = texts.iter().take(SHOWN).map(|text| format!("{:?}", text.chars().take(LONGEST).collect::<String>()));
    shown.collect::<Vec<String>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn hex(digit: char) -> String {
        format!("sha256:{}", digit.to_string().repeat(64))
    }

    #[test]
    fn the_manifest_of_an_index_is_that_of_this_architecture() {
        let check = |index: Value, expect: Result<char, &str>| {
            let found = of_platform(index.as_array().unwrap(), "arm64").map(|digest| digest.to_string());
            match expect {
                Ok(digit) => assert_eq!(found, Ok(hex(digit))),
                Err(part) => assert!(found.as_ref().is_err_and(|reason| reason.contains(part)), "{found:?}"),
            }
        };
        let entry = |digit, os: &str, architecture: &str| {
            let platform = json!({"os": os, "architecture": architecture});
            json!({"digest": hex(digit), "platform": platform})
        };
        let (amd, arm, other) =
            (entry('a', "linux", "amd64"), entry('b', "linux", "arm64"), entry('c', "unknown", "unknown"));
        check(json!([amd, arm, other]), Ok('b'));
        check(json!([{"digest": hex('d')}]), Ok('d'));
        let expect = Err("it has nothing for linux/arm64, only for \"linux/amd64\", \"unknown/unknown\"");
        check(json!([amd, other]), expect);
        check(json!([amd]), Err("it has nothing for linux/arm64"));
        check(json!([arm, arm]), Err("it has several manifests for linux/arm64"));
        check(json!([]), Err("its index lists no manifests"));
        check(json!([{"digest": 7}]), Err("an entry without a digest"));
    }

    #[test]
    fn the_image_is_the_only_layer_or_the_one_of_the_title() {
        let check = |layers: Value, title: Option<&str>, expect: Result<char, &str>| {
            let manifest = json!({"config": {"mediaType": "application/vnd.oci.empty.v1+json"}, "layers": layers});
            let found = blob(&manifest, title).map(|blob| (blob.digest.to_string(), blob.size));
            match expect {
                Ok(digit) => assert_eq!(found, Ok((hex(digit), 7))),
                Err(part) => assert!(found.as_ref().is_err_and(|reason| reason.contains(part)), "{found:?}"),
            }
        };
        let layer = |digit, title: &str| json!({"digest": hex(digit), "size": 7, "annotations": {TITLE: title}});
        let (image, notes) = (layer('a', "image.raw"), layer('b', "notes.txt"));
        check(json!([image]), None, Ok('a'));
        check(json!([image, notes]), Some("notes.txt"), Ok('b'));
        check(json!([image, notes]), None, Err("several files; its files are \"image.raw\", \"notes.txt\""));
        check(json!([image]), Some("image"), Err("no file with that title; its files are \"image.raw\""));
        check(json!([image, image]), Some("image.raw"), Err("several files"));
        check(json!([]), None, Err("it has no files"));
        check(json!(7), None, Err("it has no files"));
        check(json!([{"digest": hex('a')}]), None, Err("does not say how large"));
        check(json!([{"digest": "sha256:../x", "size": 7}]), None, Err("an entry with an invalid digest"));
        let container = json!({"config": {"mediaType": CONTAINER[0]}, "layers": [image]});
        assert!(blob(&container, None).unwrap_err().contains("it is a container image"));
    }
}
