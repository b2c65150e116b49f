//! Cards that a person described: profiles like the bundled ones, kept under names of their own and shared as files.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::Error;
use super::profile::{BY_HAND, Profile, profile, profiles};
use crate::disk;
use crate::named::{self, NamedFiles};

/// Folder of the profiles in Hearth's data folder.
const FOLDER: &str = "cards";
/// Of their files.
const EXTENSION: &str = "toml";

/// A person's own profiles.
#[derive(Clone, Debug)]
pub struct CardStore {
    files: NamedFiles,
}

/// A file of the store.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OwnCard {
    /// What it describes.
    Profile(Profile),
    /// It cannot be used.
    Broken {
        /// Which file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
}

impl CardStore {
    /// The store in Hearth's data folder `home`, made with the first profile.
    pub fn new(home: &Path) -> Self {
        Self { files: NamedFiles::new(home.join(FOLDER), EXTENSION) }
    }

    /// All of them by name, then what cannot be read.
    ///
    /// # Errors
    /// [`Error::Read`]: the folder is there and cannot be read.
    pub fn list(&self) -> Result<Vec<OwnCard>, Error> {
        let files = self.files.read_all().map_err(|source| Error::Read { path: self.files.folder().into(), source })?;
        let (mut own, mut broken) = (Vec::new(), Vec::new());
        for (path, text) in files {
            match text.map_err(|e| e.to_string()).and_then(|text| Profile::parse(&text)) {
                Ok(profile) => own.push(profile),
                Err(reason) => broken.push(OwnCard::Broken { path, reason }),
            }
        }
        own.sort_by_cached_key(|profile| (profile.name.to_lowercase(), profile.name.clone()));
        Ok(own.into_iter().map(OwnCard::Profile).chain(broken).collect())
    }

    /// Those that can be read, by name.
    ///
    /// # Errors
    /// As [`CardStore::list`].
    pub fn profiles(&self) -> Result<Vec<Profile>, Error> {
        let profiles = self.list()?.into_iter().filter_map(|card| match card {
            OwnCard::Profile(profile) => Some(profile),
            OwnCard::Broken { .. } => None,
        });
        Ok(profiles.collect())
    }

    /// The profile of this name, whatever the case of its letters; nothing where there is none.
    ///
    /// # Errors
    /// As [`CardStore::list`].
    pub fn find(&self, name: &str) -> Result<Option<Profile>, Error> {
        let name = name.trim().to_lowercase();
        Ok(self.profiles()?.into_iter().find(|profile| profile.name.to_lowercase() == name))
    }

    /// Keeps `profile` under its name, in place of the one that had it; returns it as it is kept.
    ///
    /// # Errors
    /// [`Error::BadCardName`], [`Error::BundledCard`], [`Error::NotHardware`] for figures that make no sense, and
    /// [`Error::WriteCard`].
    pub fn save(&self, profile: &Profile) -> Result<Profile, Error> {
        let name = clean(&profile.name)?;
        let is_name = |bundled: &&Profile| bundled.name.to_lowercase() == name.to_lowercase();
        if let Some(bundled) = self::profile(&name.to_lowercase()).or_else(|| profiles().iter().find(is_name)) {
            return Err(Error::BundledCard { name: bundled.id.clone() });
        }
        // Another spelling of the name is another file.
        let before = self.find(&name)?.filter(|before| before.name != name);
        let kept = Profile { id: name.clone(), name, ..profile.clone() };
        let path = self.files.path(&kept.name);
        kept.check().map_err(|reason| Error::NotHardware { path: path.clone(), reason })?;
        let text = kept.to_toml().map_err(|reason| Error::NotHardware { path: path.clone(), reason })?;
        self.files.write(&kept.name, &text).map_err(|source| Error::WriteCard { path, source })?;
        if let Some(before) = before {
            self.remove(&before.name)?;
        }
        Ok(kept)
    }

    /// Forgets the profile of this name; false where there was none.
    ///
    /// # Errors
    /// [`Error::WriteCard`], and as [`CardStore::list`].
    pub fn delete(&self, name: &str) -> Result<bool, Error> {
        match self.find(name)? {
            Some(profile) => self.remove(&profile.name).map(|()| true),
            None => Ok(false),
        }
    }

    fn remove(&self, name: &str) -> Result<(), Error> {
        // Somebody may have put the file there under another file name.
        let files = self.files.read_all().unwrap_or_default();
        let is_named = |text: &String| Profile::parse(text).is_ok_and(|profile| profile.name == name);
        for (path, _) in files.into_iter().filter(|(_, text)| text.as_ref().is_ok_and(is_named)) {
            std::fs::remove_file(&path).map_err(|source| Error::WriteCard { path, source })?;
        }
        Ok(())
    }

    /// Reads a profile that somebody shared and keeps it, under `name` or its own.
    ///
    /// # Errors
    /// As [`read_shared`] and [`CardStore::save`].
    pub fn import(&self, path: &Path, name: Option<&str>) -> Result<Profile, Error> {
        let profile = read_shared(path)?;
        let name = name.map_or_else(|| profile.name.clone(), Into::into);
        self.save(&Profile { name, ..profile })
    }

    /// Writes a profile as a file to share.
    ///
    /// # Errors
    /// [`Error::WriteCard`].
    pub fn export(profile: &Profile, path: &Path) -> Result<(), Error> {
        let failed = |source| Error::WriteCard { path: path.into(), source };
        let text = profile.to_toml().map_err(|reason| failed(std::io::Error::other(reason)))?;
        disk::write_shared(path, text.as_bytes()).map_err(failed)
    }
}

/// A shared file's profile. One without sources says that its figures were entered by hand.
fn read_shared(path: &Path) -> Result<Profile, Error> {
    let text = std::fs::read_to_string(path).map_err(|source| Error::Read { path: path.into(), source })?;
    let profile = Profile::parse(text.trim_start_matches('\u{feff}'));
    profile.map_err(|reason| Error::NotHardware { path: path.into(), reason })
}

fn clean(name: &str) -> Result<String, Error> {
    named::clean(name).map_err(|bad| Error::BadCardName {
        n_chars: match bad {
            named::BadName::Empty => 0,
            named::BadName::TooLong { n_chars } => n_chars,
        },
    })
}

impl Profile {
    /// Says of each figure in `fields` that a person entered it.
    pub fn entered_by_hand<'a>(&mut self, fields: impl IntoIterator<Item = &'a str>) {
        self.source.extend(fields.into_iter().map(|field| (field.to_string(), BY_HAND.to_string())));
    }
}

#[cfg(test)]
mod tests {
    use super::super::Hardware;
    use super::*;

    fn store() -> (tempfile::TempDir, CardStore) {
        let home = tempfile::Builder::new().prefix("a b 设置 🔥").tempdir().expect("folder");
        let store = CardStore::new(home.path());
        (home, store)
    }

    fn own(name: &str) -> Profile {
        let mut own = profile("rtx-3060-12gb").expect("bundled").clone();
        own.name = name.into();
        own.card.as_mut().expect("a card").memory_bytes = 20 << 30;
        own.entered_by_hand(["memory_bytes"]);
        own
    }

    fn names(store: &CardStore) -> Vec<String> {
        let cards = store.list().expect("listed").into_iter();
        cards.map(|card| if let OwnCard::Profile(profile) = card { profile.name } else { "broken".into() }).collect()
    }

    #[test]
    fn a_card_under_any_name_is_kept_found_edited_and_deleted() {
        let (_home, store) = store();
        assert!(store.list().expect("before there is a folder").is_empty());
        let given = ["My card", "我的 显卡", "🔥 card", "../../escape"];
        for name in given {
            let kept = store.save(&own(name)).expect("kept");
            assert_eq!((kept.id.as_str(), kept.name.as_str()), (name, name));
            assert_eq!(store.find(&name.to_uppercase()).expect("read"), Some(kept));
        }
        assert_eq!(names(&store).len(), given.len());
        // Saved again it is the same card with other figures, in another spelling too.
        let mut edited = own("MY CARD");
        edited.card.as_mut().expect("a card").board_power_w = 99.0;
        store.save(&edited).expect("kept");
        assert_eq!(names(&store).len(), given.len());
        let found = store.find("my card").expect("read").expect("there");
        assert_eq!((found.name.as_str(), found.card.expect("a card").board_power_w), ("MY CARD", 99.0));
        assert_eq!(found.source["memory_bytes"], BY_HAND);
        assert_eq!(found.source["bus"], profile("rtx-3060-12gb").expect("bundled").source["bus"]);
        for name in given {
            assert!(store.delete(name).expect("deleted"), "{name}");
            assert!(!store.delete(name).expect("not there"), "{name}");
        }
        assert!(names(&store).is_empty());
    }

    #[test]
    fn a_broken_file_is_listed_with_its_reason_and_hides_no_other() {
        let (home, store) = store();
        store.save(&own("good")).expect("kept");
        let folder = home.path().join(FOLDER);
        for (file, text) in [
            ("half.toml", "id = \"x\"\nname = "),
            ("other.toml", "x = 1\n"),
            ("nonsense.toml", &own("zero").to_toml().expect("toml").replace("21474836480", "0")),
            ("notes.txt", "x"),
        ] {
            std::fs::write(folder.join(file), text).expect("written");
        }
        std::fs::write(folder.join("bytes.toml"), [0xff, 0xfe, 0x00]).expect("written");
        let listed = store.list().expect("listed");
        assert!(matches!(&listed[0], OwnCard::Profile(profile) if profile.name == "good"), "{listed:?}");
        let reasons: Vec<String> = listed[1..].iter().map(|card| format!("{card:?}")).collect();
        assert_eq!(reasons.len(), 4, "{reasons:?}");
        for words in ["half.toml", "other.toml", "bytes.toml", "memory_bytes is 0"] {
            assert!(reasons.iter().any(|reason| reason.contains(words)), "{words}: {reasons:?}");
        }
        assert!(store.find("good").expect("read").is_some());
    }

    #[test]
    fn a_shared_file_comes_back_as_it_was_under_its_own_or_another_name() {
        let (home, store) = store();
        let kept = store.save(&own("显卡 1")).expect("kept");
        let file = home.path().join("to share 🔥.toml");
        CardStore::export(&kept, &file).expect("written");
        assert_eq!(Hardware::read(&file).expect("a plan takes the file itself"), kept.hardware());
        store.delete("显卡 1").expect("deleted");
        assert_eq!(store.import(&file, None).expect("kept"), kept);
        let other = store.import(&file, Some("another")).expect("kept");
        assert_eq!((other.name.as_str(), other.card), ("another", kept.card));
        std::fs::write(&file, "x = 1").expect("written");
        let refused = store.import(&file, None).expect_err("no profile").to_string();
        assert!(refused.contains("to share 🔥.toml"), "{refused}");
    }

    #[test]
    fn a_bundled_name_no_name_and_figures_without_sense_are_refused() {
        let (_home, store) = store();
        for name in ["", " \n", "rtx-3060-12gb", "RTX 3060, 12 GB", "rtx 3060, 12 gb"] {
            let refused = store.save(&own(name)).expect_err("refused");
            assert!(matches!(refused, Error::BadCardName { .. } | Error::BundledCard { .. }), "{name}: {refused}");
        }
        let mut slow = own("slow");
        slow.card.as_mut().expect("a card").tensor_flops_per_s = 0;
        assert!(store.save(&slow).expect_err("refused").to_string().contains("tensor_flops_per_s is 0"));
        assert!(names(&store).is_empty());
    }
}
