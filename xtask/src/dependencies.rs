use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use serde::Deserialize;
use spdx::{Expression, LicenseReq, ParseMode};

use crate::{Outcome, tools};

/// `deny.toml`, as far as it is looked at here: cargo-deny reads the rest.
#[derive(Deserialize)]
struct Rules {
    licenses: Licenses,
    bans: Bans,
    sources: Sources,
}

#[derive(Deserialize)]
struct Licenses {
    allow: Vec<String>,
    #[serde(default)]
    clarify: Vec<Clarified>,
}

/// The licence of a crate whose manifest names none.
#[derive(Deserialize)]
struct Clarified {
    #[serde(rename = "crate")]
    name: String,
    expression: String,
}

#[derive(Deserialize)]
struct Bans {
    deny: Vec<Banned>,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Banned {
    #[serde(rename = "crate")]
    name: String,
    deny_multiple_versions: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Sources {
    allow_registry: Vec<String>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    /// `None` for the crates of the workspace.
    source: Option<String>,
}

/// Holds every dependency, of all features and platforms, to `deny.toml`.
pub fn run() -> Outcome {
    let rules: Rules = toml::from_str(&fs::read_to_string(tools::root().join("deny.toml"))?)?;
    let arguments = ["metadata", "--format-version", "1", "--all-features", "--locked"];
    let text = tools::output(tools::cargo().args(arguments))?;
    let Metadata { packages } = serde_json::from_str(&text)?;
    let faults = faults(&rules, &packages)?;
    if !faults.is_empty() {
        return Err(format!("deny.toml forbids\n{}", faults.join("\n")).into());
    }
    println!("{} packages are as deny.toml has them", packages.len());
    Ok(())
}

/// What is wrong, a line each.
fn faults(rules: &Rules, packages: &[Package]) -> Result<Vec<String>, spdx::ParseError> {
    let allowed = rules.licenses.allow.iter().map(|name| requirements(name));
    let allowed: Vec<LicenseReq> = allowed.collect::<Result<Vec<_>, _>>()?.concat();
    let mut faults = vec![];
    for Package { name, version, license, source } in packages {
        if let Some(source) = source
            && !rules.sources.allow_registry.iter().any(|url| *source == format!("registry+{url}"))
        {
            faults.push(format!("{name} {version}: comes from {source}"));
        }
        let clarified = rules.licenses.clarify.iter().find(|one| one.name == *name);
        let license = license.as_ref().or(clarified.map(|one| &one.expression));
        let Some(license) = license else {
            faults.push(format!("{name} {version}: names no licence"));
            continue;
        };
        let expression = Expression::parse_mode(license, ParseMode::LAX)?;
        if !expression.evaluate(|one| allowed.contains(one)) {
            faults.push(format!("{name} {version}: has the licence {license}"));
        }
    }
    let mut versions: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for package in packages {
        versions.entry(&package.name).or_default().insert(&package.version);
    }
    for banned in rules.bans.deny.iter().filter(|banned| banned.deny_multiple_versions) {
        let versions = versions.get(banned.name.as_str()).into_iter().flatten().copied();
        let versions: Vec<_> = versions.collect();
        if versions.len() > 1 {
            faults.push(format!("{}: is there as {}", banned.name, versions.join(" and ")));
        }
    }
    Ok(faults)
}

/// A name of the list as the requirements that it meets.
fn requirements(name: &str) -> Result<Vec<LicenseReq>, spdx::ParseError> {
    Ok(Expression::parse(name)?.requirements().map(|one| one.req.clone()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULES: &str = r#"
        licenses.allow = ["MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception"]
        licenses.clarify = [{ crate = "silent", expression = "MIT" }]
        bans.deny = [{ crate = "one", deny-multiple-versions = true }]
        sources.allow-registry = ["https://x"]
    "#;

    fn faults_of(packages: &[(&str, &str, Option<&str>, &str)]) -> Vec<String> {
        let rules: Rules = toml::from_str(RULES).expect("rules");
        let package =
            |(name, version, license, source): &(&str, &str, Option<&str>, &str)| Package {
                name: name.to_string(),
                version: version.to_string(),
                license: license.map(str::to_string),
                source: Some(source.to_string()),
            };
        faults(&rules, &packages.iter().map(package).collect::<Vec<_>>()).expect("licences")
    }

    #[test]
    fn what_is_allowed_has_no_faults() {
        let of = |name, license| (name, "1.0.0", license, "registry+https://x");
        let packages = [
            of("a", Some("GPL-3.0 OR MIT")),
            of("b", Some("MIT/Apache-2.0")),
            of("c", Some("Apache-2.0 WITH LLVM-exception")),
            of("silent", None),
            of("one", Some("MIT")),
        ];
        assert_eq!(faults_of(&packages), Vec::<String>::new());
    }

    #[test]
    fn licences_sources_and_second_versions_are_named() {
        let registry = "registry+https://x";
        let packages = [
            ("a", "1.0.0", Some("GPL-3.0"), registry),
            ("b", "1.0.0", Some("MIT AND ISC"), registry),
            ("c", "1.0.0", None, registry),
            ("d", "1.0.0", Some("MIT"), "git+https://x"),
            ("one", "1.0.0", Some("MIT"), registry),
            ("one", "2.0.0", Some("MIT"), registry),
        ];
        assert_eq!(
            faults_of(&packages),
            [
                "a 1.0.0: has the licence GPL-3.0",
                "b 1.0.0: has the licence MIT AND ISC",
                "c 1.0.0: names no licence",
                "d 1.0.0: comes from git+https://x",
                "one: is there as 1.0.0 and 2.0.0",
            ]
        );
    }

    #[test]
    fn the_list_can_be_read() {
        let text = fs::read_to_string(tools::root().join("deny.toml")).expect("deny.toml");
        let rules: Rules = toml::from_str(&text).expect("rules");
        assert!(rules.licenses.allow.iter().all(|name| requirements(name).is_ok()));
    }
}
