//! Chains of certificates that were made by rcgen. Those of a TPM's own authority are in `swtpm.rs`.

use rcgen::{
    BasicConstraints, Certificate, CertificateParams, CustomExtension, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, date_time_ymd,
};
use slipway_protocol::node::attestation::{Blob, TpmKeys};
use slipway_tpm::judge::{Endorsement, Keys, Roots};

use super::public::{AES_128_CFB, EK, NULL, P256, ecc, good_ak};

/// In 2027, in seconds.
const NOW: u64 = 1_800_000_000;

struct Authority {
    params: CertificateParams,
    key: KeyPair,
}

impl Authority {
    fn new(name: &str, change: impl Fn(&mut CertificateParams)) -> Self {
        Self::with_key(name, KeyPair::generate_for(&PKCS_ECDSA_P384_SHA384).unwrap(), change)
    }

    fn with_key(name: &str, key: KeyPair, change: impl Fn(&mut CertificateParams)) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        change(&mut params);
        Self { params, key }
    }

    fn own(&self) -> Certificate {
        self.params.self_signed(&self.key).unwrap()
    }

    fn issued_by(&self, issuer: &Self) -> Certificate {
        self.params.signed_by(&self.key, &issuer.issuer()).unwrap()
    }

    fn issuer(&self) -> Issuer<'_, &KeyPair> {
        Issuer::from_params(&self.params, &self.key)
    }
}

/// An endorsement key, and what a certificate of it says.
struct Endorsed {
    params: CertificateParams,
    key: KeyPair,
}

impl Endorsed {
    fn new(change: impl Fn(&mut CertificateParams)) -> Self {
        let mut params = CertificateParams::default();
        change(&mut params);
        Self { params, key: KeyPair::generate().unwrap() }
    }

    fn judge(&self, issuer: &Authority, roots: &[Certificate]) -> Endorsement {
        let (x, y) = self.key.public_key_raw()[1..].split_at(32);
        let certificate = self.params.signed_by(&self.key, &issuer.issuer()).unwrap();
        let keys = Keys::parse(&TpmKeys {
            ek: Blob(ecc(0x0b, EK, AES_128_CFB, &[NULL], P256, [x, y])),
            ek_certificate: Some(Blob(certificate.der().to_vec())),
            ak: Blob(good_ak()),
        });
        let roots: String = roots.iter().map(Certificate::pem).collect();
        keys.unwrap().endorsement(&Roots::from_pem(&roots).unwrap(), NOW)
    }
}

fn bad(reason: &str) -> Endorsement {
    Endorsement::Bad { reason: reason.to_owned() }
}

#[test]
fn an_issuer_must_be_one_that_may_issue() {
    let root = Authority::new("root", |_| ());
    let leaf = Endorsed::new(|_| ());
    let late =
        "the certificate of its issuer has expired, is not valid yet, or has an unknown critical extension: CN=between";
    let constrained =
        |most| move |params: &mut CertificateParams| params.is_ca = IsCa::Ca(BasicConstraints::Constrained(most));
    let unknown_extension = |params: &mut CertificateParams| {
        let mut extension = CustomExtension::from_oid_content(&[1, 2, 3, 4], vec![5, 0]);
        extension.set_criticality(true);
        params.custom_extensions = vec![extension];
    };
    let table = [
        (Authority::new("between", |_| ()), Endorsement::Chain),
        (Authority::new("between", constrained(0)), Endorsement::Chain),
        (
            Authority::new("between", |params| params.key_usages = vec![KeyUsagePurpose::KeyCertSign]),
            Endorsement::Chain,
        ),
        (Authority::new("between", |params| params.is_ca = IsCa::NoCa), bad("its issuer is not a CA: CN=between")),
        (
            Authority::new("between", |params| params.is_ca = IsCa::ExplicitNoCa),
            bad("its issuer is not a CA: CN=between"),
        ),
        (
            Authority::new("between", |params| params.key_usages = vec![KeyUsagePurpose::DigitalSignature]),
            bad("its issuer is not a CA: CN=between"),
        ),
        (Authority::new("between", |params| params.not_after = date_time_ymd(2026, 1, 1)), bad(late)),
        (Authority::new("between", |params| params.not_before = date_time_ymd(2028, 1, 1)), bad(late)),
        (Authority::new("between", unknown_extension), bad(late)),
        (
            Authority::with_key("between", KeyPair::generate_for(&PKCS_ED25519).unwrap(), |_| ()),
            bad("its signature algorithm is not accepted: CN=between"),
        ),
    ];
    for (between, expected) in table {
        assert_eq!(leaf.judge(&between, &[between.issued_by(&root), root.own()]), expected);
    }

    let between = Authority::new("between", |_| ());
    let short = Authority::new("root", constrained(0));
    assert_eq!(leaf.judge(&short, &[short.own()]), Endorsement::Chain);
    let reason = "the chain is longer than an issuer allows: CN=root";
    assert_eq!(leaf.judge(&between, &[between.issued_by(&short), short.own()]), bad(reason));
}

#[test]
fn a_certificate_must_be_one_of_an_endorsement_key() {
    let root = Authority::new("root", |_| ());
    let uses =
        |uses: Vec<ExtendedKeyUsagePurpose>| Endorsed::new(move |params| params.extended_key_usages = uses.clone());
    let endorsement_key = || ExtendedKeyUsagePurpose::Other(vec![2, 23, 133, 8, 1]);
    let other_use = bad("its extended key usage is not that of an endorsement key");
    let unknown_extension = |params: &mut CertificateParams| {
        let mut extension = CustomExtension::from_oid_content(&[1, 2, 3, 4], vec![5, 0]);
        extension.set_criticality(true);
        params.custom_extensions = vec![extension];
    };
    let table = [
        (uses(vec![]), Endorsement::Chain),
        (uses(vec![endorsement_key()]), Endorsement::Chain),
        (uses(vec![ExtendedKeyUsagePurpose::ServerAuth, endorsement_key()]), Endorsement::Chain),
        (uses(vec![ExtendedKeyUsagePurpose::Any]), Endorsement::Chain),
        (uses(vec![ExtendedKeyUsagePurpose::ServerAuth]), other_use.clone()),
        // A certificate of an attestation key.
        (uses(vec![ExtendedKeyUsagePurpose::Other(vec![2, 23, 133, 8, 3])]), other_use),
        (Endorsed::new(unknown_extension), bad("it has an unknown critical extension")),
        (
            Endorsed::new(|params| params.not_after = date_time_ymd(2026, 1, 1)),
            bad("it has expired, or is not valid yet"),
        ),
    ];
    for (leaf, expected) in table {
        assert_eq!(leaf.judge(&root, &[root.own()]), expected);
    }
}

#[test]
fn one_of_several_issuers_of_a_name_is_enough() {
    let leaf = Endorsed::new(|_| ());
    let (root, other) = (Authority::new("root", |_| ()), Authority::new("root", |_| ()));
    let old = Authority::with_key("root", KeyPair::generate().unwrap(), |params| {
        params.not_after = date_time_ymd(2026, 1, 1);
    });
    assert_eq!(leaf.judge(&root, &[other.own(), old.own(), root.own()]), Endorsement::Chain);
    assert_eq!(leaf.judge(&root, &[root.own(), other.own()]), Endorsement::Chain);
    let reason = "the signature of its issuer is wrong: CN=root";
    assert_eq!(leaf.judge(&root, &[other.own(), old.own()]), bad(reason));
    // A certificate that another authority of the same name has signed is no root.
    assert_eq!(leaf.judge(&root, &[root.issued_by(&other)]), bad(reason));
}

#[test]
fn issuers_that_issue_each_other_lead_nowhere() {
    let (one, two) = (Authority::new("one", |_| ()), Authority::new("two", |_| ()));
    let leaf = Endorsed::new(|_| ());
    let endorsement = leaf.judge(&one, &[one.issued_by(&two), two.issued_by(&one)]);
    assert_eq!(endorsement, bad("more than 8 certificates are between it and a root"));
    // If another authority has also certified a root, the root's own certificate is preferred.
    assert_eq!(leaf.judge(&one, &[one.issued_by(&two), two.issued_by(&one), one.own()]), Endorsement::Chain);
}
