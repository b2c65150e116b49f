//! The weights of a Hugging Face folder: which safetensors files count, and what is in them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use super::safetensors::{Entry, Header};
use super::{Error, text_file};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// All tensors of a folder, by name. Headers are checked; no weight has been read.
#[derive(Clone, Debug)]
pub(super) struct FolderWeights {
    files: Vec<Header>,
    /// Name to (file, entry).
    places: BTreeMap<String, (usize, usize)>,
    /// Where a missing tensor should have been: the folder, or the only file.
    pub(super) blame: PathBuf,
    pub(super) notes: Vec<String>,
}

impl FolderWeights {
    pub(super) fn open(folder: &Path) -> Result<FolderWeights, Error> {
        let present = names_in(folder)?;
        if present.contains(SINGLE) {
            let mut weights = read_all(folder, &[SINGLE.to_string()])?;
            if present.contains(INDEX) {
                weights.notes.push(format!("{SINGLE} is used; {INDEX} beside it is ignored."));
            }
            return Ok(weights);
        }
        if present.contains(INDEX) {
            return by_index(folder, &present);
        }
        let safetensors: Vec<&String> = present.iter().filter(|n| n.ends_with(".safetensors")).collect();
        if let Some(shards) = numbered_shards(folder, &safetensors)? {
            let mut weights = read_all(folder, &shards)?;
            weights.notes.push(format!("{INDEX} is missing; the {} shards are used by their names.", shards.len()));
            return Ok(weights);
        }
        Err(no_weights(folder, &present, &safetensors))
    }

    pub(super) fn entry(&self, name: &str) -> Option<(&Header, &Entry)> {
        let &(file, entry) = self.places.get(name)?;
        let header = &self.files[file];
        Some((header, &header.entries()[entry]))
    }

    /// Names in the order of the files and of the bytes inside them.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let mut ordered: Vec<_> = self.places.iter().map(|(name, &place)| (place, name.as_str())).collect();
        ordered.sort_unstable();
        ordered.into_iter().map(|(_, name)| name)
    }
}

fn names_in(folder: &Path) -> Result<BTreeSet<String>, Error> {
    let io = |source| Error::Io { path: folder.into(), source };
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(folder).map_err(io)? {
        // A name that is not Unicode cannot be one that is looked for.
        if let Ok(name) = entry.map_err(io)?.file_name().into_string() {
            names.insert(name);
        }
    }
    Ok(names)
}

/// All tensors of the given files. A tensor in two of them is refused: nobody could say which is meant.
fn read_all(folder: &Path, names: &[String]) -> Result<FolderWeights, Error> {
    let mut weights = FolderWeights {
        files: Vec::with_capacity(names.len()),
        places: BTreeMap::new(),
        blame: if names.len() == 1 { folder.join(&names[0]) } else { folder.into() },
        notes: Vec::new(),
    };
    for name in names {
        let header = Header::read(&folder.join(name))?;
        for (i, entry) in header.entries().iter().enumerate() {
            if let Some((other, _)) = weights.places.insert(entry.name.clone(), (weights.files.len(), i)) {
                return Err(Error::TensorDamaged {
                    path: folder.join(name),
                    tensor: entry.name.clone(),
                    reason: format!("it is also in {}", file_name(weights.files[other].path())),
                });
            }
        }
        weights.files.push(header);
    }
    Ok(weights)
}

fn by_index(folder: &Path, present: &BTreeSet<String>) -> Result<FolderWeights, Error> {
    let path = folder.join(INDEX);
    let damaged = |reason: String| Error::IndexDamaged { path: path.clone(), reason };
    let object = text_file::json_object(&path, text_file::LARGE_MAX_BYTES)?
        .ok_or_else(|| Error::NotFound { path: path.clone() })?;
    let map = object
        .get("weight_map")
        .and_then(|m| m.as_object())
        .ok_or_else(|| damaged("it has no object `weight_map`".into()))?;
    let mut tensors_of: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (tensor, shard) in map {
        let shard = shard.as_str().ok_or_else(|| damaged(format!("the shard of `{tensor}` is {shard}, not a name")))?;
        if !is_plain_file_name(shard) {
            return Err(Error::IndexOutside { path, shard: shard.into(), tensor: tensor.clone() });
        }
        tensors_of.entry(shard).or_default().push(tensor);
    }
    if tensors_of.is_empty() {
        return Err(damaged("its `weight_map` is empty".into()));
    }
    if let Some((shard, tensors)) = tensors_of.iter().find(|(shard, _)| !present.contains(**shard)) {
        return Err(Error::ShardMissing {
            path: folder.into(),
            shard: (*shard).into(),
            n_tensors: tensors.len(),
            first: tensors.first().copied().unwrap_or_default().into(),
        });
    }
    let mut weights = FolderWeights {
        files: Vec::with_capacity(tensors_of.len()),
        places: BTreeMap::new(),
        blame: folder.into(),
        notes: Vec::new(),
    };
    for (shard, tensors) in &tensors_of {
        let header = Header::read(&folder.join(shard))?;
        let at: BTreeMap<&str, usize> =
            header.entries().iter().enumerate().map(|(i, e)| (e.name.as_str(), i)).collect();
        for &tensor in tensors {
            let &entry = at.get(tensor).ok_or_else(|| Error::ShardLacksTensor {
                path: folder.into(),
                shard: (*shard).into(),
                tensor: tensor.into(),
            })?;
            weights.places.insert(tensor.into(), (weights.files.len(), entry));
        }
        weights.files.push(header);
    }
    let stale: Vec<&str> = present
        .iter()
        .map(String::as_str)
        .filter(|name| name.ends_with(".safetensors") && !tensors_of.contains_key(name))
        .collect();
    if !stale.is_empty() {
        weights.notes.push(format!("Not in {INDEX} and therefore ignored: {}.", stale.join(", ")));
    }
    Ok(weights)
}

/// A name without any way to leave the folder, on any system.
fn is_plain_file_name(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\\', ':', '\0'])
}

/// `…-00001-of-00002.safetensors` and its companions, where the folder holds exactly one such set and nothing else.
fn numbered_shards(folder: &Path, names: &[&String]) -> Result<Option<Vec<String>>, Error> {
    let mut stems = BTreeSet::new();
    for name in names {
        let Some(parsed) = parse_shard(name) else { return Ok(None) };
        stems.insert((parsed.0, parsed.2));
    }
    let Some(&(stem, n_shards)) = stems.first() else { return Ok(None) };
    if stems.len() > 1 {
        return Ok(None);
    }
    let wanted = (1..=n_shards).map(|i| format!("{stem}-{i:05}-of-{n_shards:05}.safetensors"));
    let mut shards = Vec::new();
    for shard in wanted {
        if !names.contains(&&shard) {
            return Err(Error::ShardOfSetMissing { path: folder.into(), shard, n_shards });
        }
        shards.push(shard);
    }
    Ok(Some(shards))
}

/// `stem-00001-of-00002.safetensors` as (stem, 1, 2).
fn parse_shard(name: &str) -> Option<(&str, usize, usize)> {
    let (rest, total) = name.strip_suffix(".safetensors")?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let five = |s: &str| (s.len() == 5).then(|| s.parse::<usize>().ok()).flatten();
    Some((stem, five(number)?, five(total)?))
}

fn no_weights(folder: &Path, present: &BTreeSet<String>, safetensors: &[&String]) -> Error {
    let ending = |endings: &[&str]| -> Vec<&str> {
        present.iter().map(String::as_str).filter(|n| endings.iter().any(|e| n.ends_with(e))).collect()
    };
    let not_a_model = |reason: String, next_step: String| Error::NotAModel { path: folder.into(), reason, next_step };
    if !safetensors.is_empty() {
        let listed: Vec<&str> = safetensors.iter().map(|n| n.as_str()).collect();
        return not_a_model(
            format!("it has neither {SINGLE} nor {INDEX}, only {}", listed.join(", ")),
            format!("Choose the model's original folder; weights are in {SINGLE} or in shards with {INDEX}."),
        );
    }
    let pickles = ending(&[".bin", ".pt", ".pth", ".ckpt", ".pkl"]);
    if !pickles.is_empty() {
        return Error::PickleOnly { path: folder.into(), files: shortened(&pickles) };
    }
    let ggufs = ending(&[".gguf"]);
    if !ggufs.is_empty() {
        return not_a_model(
            format!("it has no safetensors files, only {}", shortened(&ggufs)),
            "Choose the .gguf file itself instead of its folder.".into(),
        );
    }
    let others = ending(&[".h5", ".msgpack", ".onnx", ".npz"]);
    let found = if others.is_empty() { String::new() } else { format!(" (found {})", shortened(&others)) };
    not_a_model(
        format!("it has a configuration but no weights: neither {SINGLE} nor {INDEX} is there{found}"),
        "Download the model's .safetensors files into the folder.".into(),
    )
}

fn shortened(names: &[&str]) -> String {
    match names {
        [first, second, third, _, ..] => format!("{first}, {second}, {third} and {} more", names.len() - 3),
        _ => names.join(", "),
    }
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_cannot_leave_the_folder() {
        for name in ["../a.safetensors", "a/b.safetensors", "/a", "..", "C:a", "..\\a", ""] {
            assert!(!is_plain_file_name(name), "{name}");
        }
        assert!(is_plain_file_name("model-00001-of-00002.safetensors"));
    }

    #[test]
    fn a_set_of_shards_is_known_by_its_numbers() {
        let folder = Path::new("folder");
        let names = |list: &[&str]| list.iter().map(|s| s.to_string()).collect::<Vec<_>>();
        let shards = |list: &[String]| numbered_shards(folder, &list.iter().collect::<Vec<_>>());
        let both = names(&["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]);
        assert_eq!(shards(&both).unwrap(), Some(both.clone()));
        let error = shards(&both[..1]).unwrap_err().to_string();
        assert!(error.contains("model-00002-of-00002.safetensors"), "{error}");
        let mixed = names(&["model-00001-of-00002.safetensors", "model-00001-of-00003.safetensors"]);
        assert_eq!(shards(&mixed).unwrap(), None);
        assert_eq!(shards(&names(&["weights.safetensors"])).unwrap(), None);
    }

    #[test]
    fn a_folder_with_only_pickles_is_refused_as_such() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["pytorch_model.bin", "training_args.bin"] {
            std::fs::write(folder.path().join(name), b"\x80\x02").unwrap();
        }
        let error = FolderWeights::open(folder.path()).unwrap_err();
        assert!(matches!(&error, Error::PickleOnly { files, .. } if files.contains("pytorch_model.bin")), "{error}");
    }
}
