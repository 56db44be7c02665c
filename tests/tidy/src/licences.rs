//! Licences of everything that is locked, and packages that must not be.

use crate::{Finding, metadata::Metadata};

/// Licences that oblige us to no more than a notice.
const ACCEPTED: &[&str] = &[
    "MIT",
    "MIT-0",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "ISC",
    "Zlib",
    "Unicode-3.0",
    "CDLA-Permissive-2.0",
];

/// One TLS library, ring, that gcc alone builds; no C++, no cmake, no system OpenSSL.
const BANNED: &[&str] =
    &["aws-lc-sys", "aws-lc-rs", "openssl", "openssl-sys", "native-tls", "cmake", "protoc-bin-vendored"];

/// Packages under a licence we don't accept or that we ban.
pub fn check(metadata: &Metadata) -> Vec<Finding> {
    let mut findings = Vec::new();
    for package in &metadata.packages {
        let place = format!("{} {}", package.name, package.version);
        if BANNED.contains(&package.name.as_str()) {
            findings.push(Finding::whole(&place, "is banned; choose the feature that uses ring"));
        }
        match &package.license {
            Some(expression) if is_accepted(expression) => {}
            Some(expression) => findings.push(Finding::whole(place, format!("is under {expression}"))),
            None => findings.push(Finding::whole(place, "names no licence")),
        }
    }
    findings
}

/// Whether an SPDX expression leaves us an accepted choice. `A/B` is the old form of `A OR B`.
fn is_accepted(expression: &str) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let words: Vec<&str> = spaced.split_whitespace().collect();
    let mut rest = words.as_slice();
    any(&mut rest) && rest.is_empty()
}

fn any(rest: &mut &[&str]) -> bool {
    let mut accepted = all(rest);
    while let Some((&"OR", after)) = rest.split_first() {
        *rest = after;
        accepted |= all(rest);
    }
    accepted
}

fn all(rest: &mut &[&str]) -> bool {
    let mut accepted = one(rest);
    while let Some((&"AND", after)) = rest.split_first() {
        *rest = after;
        accepted &= one(rest);
    }
    accepted
}

fn one(rest: &mut &[&str]) -> bool {
    match **rest {
        ["(", ..] => {
            *rest = &rest[1..];
            let accepted = any(rest);
            let closed = rest.first() == Some(&")");
            *rest = rest.get(1..).unwrap_or_default();
            accepted && closed
        }
        [name, "WITH", exception, ..] => {
            *rest = &rest[3..];
            ACCEPTED.contains(&name) || ACCEPTED.contains(&format!("{name} WITH {exception}").as_str())
        }
        [name, ..] => {
            *rest = &rest[1..];
            ACCEPTED.contains(&name)
        }
        [] => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metadata::Package;

    #[test]
    fn expressions_are_read_as_spdx_means_them() {
        for good in [
            "MIT",
            "MIT/Apache-2.0",
            "LGPL-3.0-only OR MIT",
            "(MIT OR Apache-2.0) AND Unicode-3.0",
            "Apache-2.0 WITH LLVM-exception OR BSL-1.0",
            "Apache-2.0 AND ISC",
        ] {
            assert!(is_accepted(good), "{good}");
        }
        for bad in
            ["GPL-3.0", "MIT AND GPL-3.0", "(MIT OR GPL-2.0) AND GPL-3.0", "MPL-2.0", "", "(MIT", "MIT )"]
        {
            assert!(!is_accepted(bad), "{bad}");
        }
    }

    #[test]
    fn a_foreign_licence_a_missing_one_and_a_banned_package_are_found() {
        let package = |name: &str, license: Option<&str>| Package {
            name: name.to_owned(),
            version: "1.0.0".to_owned(),
            license: license.map(str::to_owned),
            ..Package::default()
        };
        let packages = vec![
            package("fine", Some("MIT")),
            package("strict", Some("AGPL-3.0")),
            package("silent", None),
            package("openssl-sys", Some("MIT")),
        ];
        let found: Vec<_> =
            check(&Metadata { packages, ..Metadata::default() }).iter().map(ToString::to_string).collect();
        assert_eq!(
            found,
            [
                "strict 1.0.0: is under AGPL-3.0",
                "silent 1.0.0: names no licence",
                "openssl-sys 1.0.0: is banned; choose the feature that uses ring",
            ]
        );
    }
}
