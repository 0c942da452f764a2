//! Where a virtual machine may be told its server. In every source of settings, the places are a text: their names,
//! separated by commas.

use std::collections::BTreeSet;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// A place where the owner of a virtual machine leaves data for it. The order is that in which a machine looks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
#[serde(rename_all = "kebab-case")]
pub enum MetadataSource {
    /// A small disk or disc with the label `config-2` (OpenStack Nova, "Config drives").
    #[cfg_attr(feature = "clap", value(help = "A small disk or disc with the label config-2"))]
    ConfigDrive,
    /// The service at 169.254.169.254, as OpenStack has it (OpenStack Nova, "Metadata service").
    #[cfg_attr(feature = "clap", value(help = "The service at 169.254.169.254, in the form of OpenStack"))]
    Openstack,
    /// The service at 169.254.169.254, as EC2 has it (Amazon EC2, "Instance metadata and user data").
    #[cfg_attr(feature = "clap", value(help = "The service at 169.254.169.254, in the form of EC2"))]
    Ec2,
}

impl MetadataSource {
    /// All places, in the order in which a machine looks.
    pub const ALL: [Self; 3] = [Self::ConfigDrive, Self::Openstack, Self::Ec2];

    /// Returns the name of the place in JSON, in options and in configurations.
    pub fn name(self) -> &'static str {
        match self {
            Self::ConfigDrive => "config-drive",
            Self::Openstack => "openstack",
            Self::Ec2 => "ec2",
        }
    }

    /// Returns what the place is, for messages.
    pub fn title(self) -> &'static str {
        match self {
            Self::ConfigDrive => "the config drive",
            Self::Openstack => "the metadata service in the form of OpenStack",
            Self::Ec2 => "the metadata service in the form of EC2",
        }
    }
}

/// Writes nothing if no place is allowed, as for other settings that are absent.
pub(super) fn serialize<S: Serializer>(places: &BTreeSet<MetadataSource>, writer: S) -> Result<S::Ok, S::Error> {
    let names: Vec<&str> = places.iter().map(|place| place.name()).collect();
    (!names.is_empty()).then(|| names.join(",")).serialize(writer)
}

/// The error is the end of a sentence about the value.
pub(super) fn deserialize<'de, D: Deserializer<'de>>(reader: D) -> Result<BTreeSet<MetadataSource>, D::Error> {
    let text = String::deserialize(reader)?;
    let find = |name: &str| MetadataSource::ALL.into_iter().find(|place| place.name() == name);
    let places: Option<BTreeSet<MetadataSource>> = text.split(',').map(|name| find(name.trim())).collect();
    places.ok_or_else(|| {
        let all = MetadataSource::ALL.map(MetadataSource::name).join(",");
        de::Error::custom(format_args!("must be names of places, separated by commas: write it as {all}"))
    })
}
