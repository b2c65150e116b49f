//! Packages of a few hundred kilobytes from a server in this process, which breaks off, lies and forgets as servers do.

use std::cell::Cell;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Cursor, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use tempfile::TempDir;
use zip::ZipWriter;
use zip::write::SimpleFileOptions;

use super::*;
use crate::error::Explain;
use crate::gpu_setup::place::sha256_of;

// ---- a package

const LIBRARY: &str = "nvidia/cu13/lib/libfirst.so.13";
const SECOND: &str = "nvidia/cu13/lib/libsecond.so.13";
const LICENCE: &str = "nvidia_first-1.0.dist-info/licenses/License.txt";

/// Bytes that no compressor makes smaller.
fn noise(n: usize, mut seed: u64) -> Vec<u8> {
    let next = |_| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (seed >> 56) as u8
    };
    (0..n).map(next).collect()
}

fn sha256(bytes: &[u8]) -> String {
    sha256_of(bytes).expect("memory can be read")
}

/// A wheel with two libraries, a licence, and something that nobody asked for under a name that leads out of any folder.
fn archive() -> (Vec<u8>, Vec<Member>) {
    let contents = [(LIBRARY, noise(200_000, 1)), (SECOND, noise(90_000, 2)), (LICENCE, b"Terms of use".repeat(50))];
    let mut zip = ZipWriter::new(Cursor::new(Vec::new()));
    let mut members = Vec::new();
    for (path, bytes) in &contents {
        zip.start_file(*path, SimpleFileOptions::default()).expect("begun");
        zip.write_all(bytes).expect("written");
        members.push(Member { path: (*path).into(), bytes: bytes.len() as u64, sha256: sha256(bytes) });
    }
    zip.start_file("../../../evil.so", SimpleFileOptions::default()).expect("begun");
    zip.write_all(b"out of here").expect("written");
    (zip.finish().expect("finished").into_inner(), members)
}

fn libraries(archive: &[u8], members: Vec<Member>) -> Libraries {
    let wheel = Wheel {
        folder: "ab/cd/ef".into(),
        file: "nvidia_first-1.0-py3-none-any.whl".into(),
        bytes: archive.len() as u64,
        sha256: sha256(archive),
        members,
    };
    Libraries {
        index: "https://index.invalid/packages".into(),
        packages: vec![Package { name: "nvidia-first".into(), version: "1.0".into(), wheel }],
        ..Libraries::on(Platform::Linux)
    }
}

// ---- a server

#[derive(Clone, Copy, Debug)]
enum Behaviour {
    /// All that was asked for.
    Serves,
    /// Promises all and ends after so many bytes.
    BreaksOffAfter(usize),
    /// The whole file, whatever range was asked for.
    KnowsNoRanges,
    /// As many bytes, but others.
    Lies,
    /// Nothing but a status.
    Says(u16),
    /// A page about something else.
    ShowsAPage,
}

/// Answers each request by the next behaviour, the last one for ever.
struct Server {
    address: String,
    /// Path and range of each request.
    requests: Arc<Mutex<Vec<(String, Option<String>)>>>,
}

impl Server {
    fn new(content: &[u8], behaviours: &[Behaviour]) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = format!("http://{}/packages/", listener.local_addr().expect("bound"));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (content, behaviours, seen) = (content.to_vec(), behaviours.to_vec(), Arc::clone(&requests));
        thread::spawn(move || {
            for (n, stream) in listener.incoming().flatten().enumerate() {
                let behaviour = behaviours[n.min(behaviours.len() - 1)];
                // A client that ends the connection early is what some tests are about.
                let _ = answer(stream, &content, behaviour, &seen);
            }
        });
        Server { address, requests }
    }

    fn ranges(&self) -> Vec<Option<String>> {
        self.requests.lock().expect("whole").iter().map(|(_, range)| range.clone()).collect()
    }
}

fn answer(
    mut stream: TcpStream,
    content: &[u8],
    behaviour: Behaviour,
    seen: &Mutex<Vec<(String, Option<String>)>>,
) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream.try_clone()?).lines();
    let path = lines.next().transpose()?.unwrap_or_default().split(' ').nth(1).unwrap_or_default().to_string();
    let mut range = None;
    for line in lines {
        let line = line?;
        if line.is_empty() {
            break;
        }
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("range")
        {
            range = Some(value.trim().to_string());
        }
    }
    seen.lock().expect("whole").push((path, range.clone()));
    let from = range.and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse::<usize>().ok());
    let from = from.filter(|_| !matches!(behaviour, Behaviour::KnowsNoRanges));
    let total = content.len();
    let head = match (behaviour, from) {
        (Behaviour::Says(status), _) => format!("{status} Said\r\ncontent-length: 0"),
        (Behaviour::ShowsAPage, _) => "200 OK\r\ncontent-length: 12".into(),
        (_, Some(from)) if from >= total => format!("416 No\r\ncontent-range: bytes */{total}\r\ncontent-length: 0"),
        (_, Some(from)) => format!(
            "206 Partial\r\ncontent-range: bytes {from}-{}/{total}\r\ncontent-length: {}",
            total - 1,
            total - from
        ),
        (_, None) => format!("200 OK\r\ncontent-length: {total}"),
    };
    write!(stream, "HTTP/1.1 {head}\r\nconnection: close\r\n\r\n")?;
    let asked = content.get(from.unwrap_or(0)..).unwrap_or_default();
    match behaviour {
        Behaviour::Says(_) => Ok(()),
        Behaviour::ShowsAPage => stream.write_all(b"Please pay. "),
        Behaviour::BreaksOffAfter(n) => stream.write_all(&asked[..n.min(asked.len())]),
        Behaviour::Lies => stream.write_all(&asked.iter().map(|byte| byte ^ 1).collect::<Vec<_>>()),
        Behaviour::Serves | Behaviour::KnowsNoRanges => stream.write_all(asked),
    }
}

// ---- a place

struct Scene {
    /// Everything happens in here.
    scratch: TempDir,
    archive: Vec<u8>,
    libraries: Libraries,
}

impl Scene {
    fn new() -> Scene {
        let (archive, members) = archive();
        let libraries = libraries(&archive, members);
        Scene { scratch: tempfile::tempdir().expect("folder"), archive, libraries }
    }

    /// As people have them.
    fn root(&self) -> PathBuf {
        self.scratch.path().join("我的 Hearth 🔥").join("cuda")
    }

    fn part(&self) -> PathBuf {
        self.root().join("downloads").join("nvidia_first-1.0-py3-none-any.whl.part")
    }

    fn package(&self) -> PathBuf {
        self.root().join("nvidia-first-1.0")
    }

    fn setup(&self, origin: Origin) -> SceneSetup<'_> {
        SceneSetup { scene: self, origin, n_attempts: 3, free_bytes: |_| None }
    }

    fn from(&self, server: &Server) -> SceneSetup<'_> {
        self.setup(Origin::Index(server.address.clone()))
    }

    fn look(&self, look: Look) -> GpuPackageState {
        let places = Places { fetched: Some(self.root()), beside: vec![], system: vec![] };
        let [package] = &places.look(&self.libraries, look)[..] else { panic!("one package") };
        package.state.clone()
    }

    fn names(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

struct SceneSetup<'a> {
    scene: &'a Scene,
    origin: Origin,
    n_attempts: u32,
    free_bytes: fn(&Path) -> Option<u64>,
}

impl SceneSetup<'_> {
    fn run(self) -> Result<Vec<GpuSetupProgress>, Error> {
        self.run_until(&|| false)
    }

    fn run_until(self, is_cancelled: &dyn Fn() -> bool) -> Result<Vec<GpuSetupProgress>, Error> {
        let root = self.scene.root();
        let setup = Setup {
            libraries: &self.scene.libraries,
            root: &root,
            origin: self.origin,
            patience: Patience {
                answer: Duration::from_secs(10),
                silence: Duration::from_secs(10),
                n_attempts: self.n_attempts,
                pause: Duration::from_millis(1),
            },
            free_bytes: self.free_bytes,
        };
        let places = Places { fetched: Some(root.clone()), beside: vec![], system: vec![] };
        let mut heard = Vec::new();
        setup.run(&places.look(&self.scene.libraries, Look::Full), is_cancelled, &mut |news| heard.push(news))?;
        Ok(heard)
    }
}

// ---- fetching

#[test]
fn a_package_is_fetched_compared_and_unpacked_and_only_what_was_asked_for() {
    let scene = Scene::new();
    let server = Server::new(&scene.archive, &[Behaviour::Serves]);
    assert_eq!(scene.look(Look::Quick), GpuPackageState::Missing);
    let heard = scene.from(&server).run().expect("fetched");

    assert_eq!(scene.look(Look::Quick), GpuPackageState::Fetched { folder: scene.package() });
    assert_eq!(scene.look(Look::Full), GpuPackageState::Fetched { folder: scene.package() });
    assert_eq!(Scene::names(&scene.package()), ["License.txt", "checked.json", "libfirst.so.13", "libsecond.so.13"]);
    assert_eq!(fs::read(scene.package().join("libfirst.so.13")).expect("there"), noise(200_000, 1));
    // Neither the archive nor anything outside is left.
    assert_eq!(Scene::names(&scene.root()), ["lock", "nvidia-first-1.0"]);
    assert_eq!(Scene::names(scene.scratch.path()).len(), 1);
    let path = server.requests.lock().expect("whole")[0].0.clone();
    assert_eq!(path, "/packages/ab/cd/ef/nvidia_first-1.0-py3-none-any.whl");

    let phases: Vec<_> = heard.iter().map(|news| news.phase).collect();
    for phase in [GpuSetupPhase::Fetch, GpuSetupPhase::Compare, GpuSetupPhase::Unpack] {
        assert!(phases.contains(&phase), "{phase:?} is not among {phases:?}");
    }
    assert!(
        heard.iter().all(|news| news.package == "nvidia-first" && news.done_bytes <= news.total_bytes),
        "{heard:?}"
    );
    let fetched = heard.iter().rev().find(|news| news.phase == GpuSetupPhase::Fetch).expect("said");
    assert_eq!((fetched.done_bytes, fetched.total_bytes), (scene.archive.len() as u64, scene.archive.len() as u64));

    // What is there is not fetched again.
    assert!(scene.from(&server).run().expect("nothing to do").is_empty());
    assert_eq!(server.ranges().len(), 1);
}

#[test]
fn a_download_that_breaks_off_goes_on_behind_what_came() {
    let scene = Scene::new();
    let server = Server::new(
        &scene.archive,
        &[
            Behaviour::BreaksOffAfter(100_000),
            Behaviour::Says(503),
            Behaviour::BreaksOffAfter(50_000),
            Behaviour::Serves,
        ],
    );
    let heard = scene.from(&server).run().expect("fetched in the end");
    assert_eq!(scene.look(Look::Full), GpuPackageState::Fetched { folder: scene.package() });
    let asked = |from: &str| Some(from.to_string());
    assert_eq!(server.ranges(), [None, asked("bytes=100000-"), asked("bytes=100000-"), asked("bytes=150000-")]);
    let reasons: Vec<_> = heard.iter().filter_map(|news| news.reason.as_deref()).collect();
    assert_eq!(reasons.len(), 3, "{reasons:?}");
    assert!(reasons[1].contains("503"), "{reasons:?}");
}

#[test]
fn a_later_process_goes_on_where_an_earlier_one_was_ended() {
    let scene = Scene::new();
    let broken = Server::new(&scene.archive, &[Behaviour::BreaksOffAfter(70_000), Behaviour::Says(500)]);
    let error = scene.from(&broken).run().expect_err("the server gave up");
    assert_eq!(error.code(), "gpu.unreachable");
    assert!(error.to_string().contains("in 3 attempts: the server answered with status 500"), "{error}");
    assert_eq!(fs::metadata(scene.part()).expect("kept").len(), 70_000);
    assert_eq!(scene.look(Look::Quick), GpuPackageState::Missing);

    let whole = Server::new(&scene.archive, &[Behaviour::Serves]);
    scene.from(&whole).run().expect("fetched");
    assert_eq!(whole.ranges(), [Some("bytes=70000-".to_string())]);
    assert_eq!(scene.look(Look::Full), GpuPackageState::Fetched { folder: scene.package() });
}

#[test]
fn a_server_without_ranges_is_asked_for_the_whole_again() {
    let scene = Scene::new();
    let server = Server::new(&scene.archive, &[Behaviour::BreaksOffAfter(70_000), Behaviour::KnowsNoRanges]);
    scene.from(&server).run().expect("fetched");
    assert_eq!(server.ranges(), [None, Some("bytes=70000-".to_string())]);
    assert_eq!(scene.look(Look::Full), GpuPackageState::Fetched { folder: scene.package() });
}

#[test]
fn wrong_bytes_are_refused_and_nothing_of_them_is_kept() {
    let scene = Scene::new();
    let server = Server::new(&scene.archive, &[Behaviour::Lies]);
    let error = scene.from(&server).run().expect_err("refused");
    assert_eq!(error.code(), "gpu.wrong_bytes");
    assert!(error.to_string().contains(&scene.libraries.packages[0].wheel.sha256), "{error}");
    assert_eq!(Scene::names(&scene.root().join("downloads")), Vec::<String>::new());
    assert!(!scene.package().exists());
    assert_eq!(server.ranges().len(), 1, "a server that lies is not asked again");
}

#[test]
fn a_spoilt_beginning_from_earlier_costs_one_more_download_and_no_more() {
    let scene = Scene::new();
    fs::create_dir_all(scene.root().join("downloads")).expect("made");
    fs::write(scene.part(), [7; 5000]).expect("written");
    let server = Server::new(&scene.archive, &[Behaviour::Serves]);
    scene.from(&server).run().expect("fetched");
    assert_eq!(server.ranges(), [Some("bytes=5000-".to_string()), None]);

    // Longer than the file: there is nothing to go on with.
    fs::remove_dir_all(scene.package()).expect("removed");
    fs::create_dir_all(scene.root().join("downloads")).expect("made");
    fs::write(scene.part(), vec![7; scene.archive.len() + 1]).expect("written");
    let server = Server::new(&scene.archive, &[Behaviour::Serves]);
    scene.from(&server).run().expect("fetched");
    assert_eq!(server.ranges(), [None]);
}

#[test]
fn a_page_in_place_of_the_file_does_not_cost_what_was_fetched() {
    let scene = Scene::new();
    let server = Server::new(&scene.archive, &[Behaviour::BreaksOffAfter(70_000), Behaviour::ShowsAPage]);
    let error = scene.from(&server).run().expect_err("refused");
    assert_eq!(error.code(), "gpu.wrong_size");
    assert!(error.to_string().ends_with("and 12 are offered"), "{error}");
    assert_eq!(fs::read(scene.part()).expect("kept"), scene.archive[..70_000]);
}

#[test]
fn a_file_that_a_mirror_does_not_have_is_not_asked_for_again() {
    let scene = Scene::new();
    let server = Server::new(&scene.archive, &[Behaviour::Says(404)]);
    let error = scene.from(&server).run().expect_err("refused");
    assert_eq!(error.code(), "gpu.refused");
    assert!(error.to_string().contains("404") && error.next_step().contains("--mirror"), "{error}");
    assert_eq!(server.ranges().len(), 1);
    let error = scene.setup(Origin::Index("no address".into())).run().expect_err("refused");
    assert!(error.to_string().contains("in 1 attempts"), "{error}");
}

#[test]
fn cancelling_keeps_what_was_fetched() {
    let scene = Scene::new();
    let server = Server::new(&scene.archive, &[Behaviour::BreaksOffAfter(70_000), Behaviour::Serves]);
    let n_asked = Cell::new(0);
    let is_cancelled = || {
        n_asked.set(n_asked.get() + 1);
        scene.part().metadata().is_ok_and(|metadata| metadata.len() >= 70_000)
    };
    let error = scene.from(&server).run_until(&is_cancelled).expect_err("cancelled");
    assert_eq!(error.code(), "gpu.cancelled");
    assert_eq!(fs::metadata(scene.part()).expect("kept").len(), 70_000);
    assert!(n_asked.get() > 0);
    scene.from(&server).run().expect("goes on");
    assert_eq!(server.ranges().last().expect("asked").as_deref(), Some("bytes=70000-"));
}

// ---- disks and folders

#[test]
fn too_little_space_is_said_before_anything_is_asked_for() {
    let scene = Scene::new();
    let server = Server::new(&scene.archive, &[Behaviour::Serves]);
    let mut setup = scene.from(&server);
    setup.free_bytes = |_| Some(100_000);
    let error = setup.run().expect_err("refused");
    assert_eq!(error.code(), "gpu.disk_too_small");
    let needed = scene.archive.len() as u64 + scene.libraries.packages[0].unpacked_bytes();
    assert!(error.to_string().contains(&crate::format::bytes(needed)), "{error}");
    assert!(error.to_string().ends_with("97.7 KiB are free"), "{error}");
    assert!(server.ranges().is_empty());
}

#[test]
#[cfg(unix)]
fn a_disk_that_cannot_be_written_is_named() {
    let scene = Scene::new();
    let server = Server::new(&scene.archive, &[Behaviour::Serves]);
    fs::create_dir_all(scene.root().join("downloads")).expect("made");
    // Writing to it is answered as by a full disk.
    std::os::unix::fs::symlink("/dev/full", scene.part()).expect("linked");
    let error = scene.from(&server).run().expect_err("refused");
    assert_eq!(error.code(), "gpu.disk_full");
    assert!(error.to_string().contains("我的 Hearth 🔥"), "{error}");
    assert!(!scene.package().exists());
}

#[test]
fn packages_are_taken_from_a_folder_without_a_network() {
    let scene = Scene::new();
    let folder = scene.scratch.path().join("wheels");
    fs::create_dir(&folder).expect("made");
    let from = || scene.setup(Origin::Folder(folder.clone()));
    let error = from().run().expect_err("refused");
    assert_eq!(error.code(), "gpu.not_in_folder");
    assert!(error.to_string().contains("nvidia_first-1.0-py3-none-any.whl is not in "), "{error}");

    let file = folder.join("nvidia_first-1.0-py3-none-any.whl");
    fs::write(&file, &scene.archive[1..]).expect("written");
    assert_eq!(from().run().expect_err("refused").code(), "gpu.wrong_size");
    let mut other = scene.archive.clone();
    other[100] ^= 1;
    fs::write(&file, other).expect("written");
    assert_eq!(from().run().expect_err("refused").code(), "gpu.wrong_bytes");

    fs::write(&file, &scene.archive).expect("written");
    from().run().expect("unpacked");
    assert_eq!(scene.look(Look::Full), GpuPackageState::Fetched { folder: scene.package() });
    assert!(file.exists(), "the person's own file stays");
}

#[test]
fn an_archive_that_is_not_as_it_was_pinned_leaves_nothing() {
    let mut scene = Scene::new();
    let server = Server::new(&scene.archive, &[Behaviour::Serves]);
    let members = scene.libraries.packages[0].wheel.members.clone();
    let fails_with = |scene: &Scene, code: &str| {
        let error = scene.from(&server).run().expect_err("refused");
        assert_eq!(error.code(), code, "{error}");
        assert!(!scene.package().exists());
        assert!(Scene::names(&scene.root()).iter().all(|name| !name.contains("nvidia-first")));
    };
    scene.libraries.packages[0].wheel.members[1].path = "nvidia/cu13/lib/libthird.so".into();
    fails_with(&scene, "gpu.archive");
    scene.libraries.packages[0].wheel.members.clone_from(&members);
    scene.libraries.packages[0].wheel.members[1].sha256 = sha256(b"other");
    fails_with(&scene, "gpu.wrong_bytes");
    // A member that unpacks to more than was pinned is not written to its end.
    scene.libraries.packages[0].wheel.members.clone_from(&members);
    scene.libraries.packages[0].wheel.members[0].bytes = 100;
    fails_with(&scene, "gpu.archive");
    // The archive was kept each time, so it was fetched once.
    assert_eq!(server.ranges().len(), 1);
}

#[test]
fn a_name_that_leads_out_of_the_folder_is_unpacked_into_it() {
    let mut scene = Scene::new();
    let bytes = b"out of here";
    let member = Member { path: "../../../evil.so".into(), bytes: bytes.len() as u64, sha256: sha256(bytes) };
    scene.libraries.packages[0].wheel.members.push(member);
    let server = Server::new(&scene.archive, &[Behaviour::Serves]);
    // Whether such an archive is read or refused is the archive's reader's; it never writes elsewhere.
    if scene.from(&server).run().is_ok() {
        assert!(scene.package().join("evil.so").is_file());
    }
    assert_eq!(Scene::names(scene.scratch.path()), ["我的 Hearth 🔥"]);
    assert_eq!(Scene::names(&scene.scratch.path().join("我的 Hearth 🔥")), ["cuda"]);
}

#[test]
fn one_process_fetches_at_a_time_and_what_a_killed_one_left_is_cleared() {
    let scene = Scene::new();
    let server = Server::new(&scene.archive, &[Behaviour::Serves]);
    let left = scene.root().join("nvidia-first-1.0.unpacking");
    fs::create_dir_all(&left).expect("made");
    fs::write(left.join("libfirst.so.13"), b"half").expect("written");
    let lock = File::create(scene.root().join("lock")).expect("made");
    lock.lock().expect("held");
    assert_eq!(scene.from(&server).run().expect_err("held").code(), "gpu.busy");
    lock.unlock().expect("free");
    scene.from(&server).run().expect("fetched");
    assert!(!left.exists());
}

// ---- what is here

#[test]
fn a_library_that_changed_is_noticed_and_fetched_again() {
    let scene = Scene::new();
    let server = Server::new(&scene.archive, &[Behaviour::Serves]);
    scene.from(&server).run().expect("fetched");
    let library = scene.package().join("libfirst.so.13");
    let whole = fs::read(&library).expect("there");
    let damaged = |look: Look, words: &str| match scene.look(look) {
        GpuPackageState::Damaged { reason } => assert!(reason.contains(words), "{reason}"),
        other => panic!("{other:?}"),
    };

    fs::write(&library, &whole[1..]).expect("written");
    damaged(Look::Quick, "libfirst.so.13 has 199999 bytes instead of 200000");

    let mut other = whole.clone();
    other[77] ^= 1;
    fs::write(&library, &other).expect("written");
    damaged(Look::Quick, "libfirst.so.13 has SHA-256 ");

    // Copied back with another time, it is compared once and noted.
    fs::write(&library, &whole).expect("written");
    assert_eq!(scene.look(Look::Quick), GpuPackageState::Fetched { folder: scene.package() });
    let noted = fs::metadata(&library).expect("there").modified().expect("a time");

    // A disk that loses bits changes no time: the full look reads all.
    fs::write(&library, &other).expect("written");
    File::options().write(true).open(&library).expect("opened").set_modified(noted).expect("set");
    assert_eq!(scene.look(Look::Quick), GpuPackageState::Fetched { folder: scene.package() });
    damaged(Look::Full, "libfirst.so.13 has SHA-256 ");

    scene.from(&server).run().expect("fetched again");
    assert_eq!(fs::read(&library).expect("there"), whole);
    fs::remove_file(scene.package().join("License.txt")).expect("removed");
    damaged(Look::Quick, "License.txt");
}

#[test]
fn a_folder_counts_where_it_has_all_of_a_package() {
    let scene = Scene::new();
    let folder = |name: &str, libraries: &[&str]| {
        let folder = scene.scratch.path().join(name);
        fs::create_dir_all(&folder).expect("made");
        libraries.iter().for_each(|library| fs::write(folder.join(library), b"").expect("written"));
        folder
    };
    let half = folder("half", &["libfirst.so.13"]);
    let other_half = folder("other half", &["libsecond.so.13"]);
    let whole = folder("whole", &["libfirst.so.13", "libsecond.so.13"]);
    let state = |beside: &[&PathBuf], system: &[&PathBuf]| {
        let cloned = |folders: &[&PathBuf]| folders.iter().map(|&folder| folder.clone()).collect();
        let places = Places { fetched: Some(scene.root()), beside: cloned(beside), system: cloned(system) };
        places.look(&scene.libraries, Look::Quick)[0].state.clone()
    };
    assert_eq!(state(&[], &[&half, &other_half]), GpuPackageState::Missing);
    assert_eq!(state(&[], &[&half, &whole]), GpuPackageState::Installed { folder: whole.clone() });

    let server = Server::new(&scene.archive, &[Behaviour::Serves]);
    scene.from(&server).run().expect("fetched");
    assert_eq!(state(&[&half], &[&whole]), GpuPackageState::Fetched { folder: scene.package() });
    assert_eq!(state(&[&whole], &[]), GpuPackageState::Installed { folder: whole.clone() });
    // What the system has serves where what was fetched is damaged.
    fs::write(scene.package().join("libfirst.so.13"), b"").expect("written");
    assert_eq!(state(&[], &[&whole]), GpuPackageState::Installed { folder: whole });
    assert!(matches!(state(&[], &[]), GpuPackageState::Damaged { .. }));
}

#[test]
#[cfg(unix)]
fn an_engine_that_does_not_start_says_why_and_the_processor_is_taken() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::Builder::new().prefix("我的 Hearth 🔥").tempdir().expect("folder");
    let program = folder.path().join("hearth-cuda");
    let tried = |script: &str| {
        fs::write(&program, format!("#!/bin/sh\n{script}\n")).expect("written");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("allowed");
        CardEngine { program: program.clone(), folders: vec![folder.path().into()] }.try_out().map(drop)
    };
    assert_eq!(tried("case $LD_LIBRARY_PATH in */我的*) exit 0;; esac; exit 1"), Ok(()));
    let why =
        tried("echo 'hearth-cuda: libcublas.so.13: cannot open shared object file' >&2; exit 127").expect_err("no");
    assert_eq!(why.reason(), GpuSetupReason::DoesNotStart);
    assert!(why.to_string().contains("127") && why.to_string().contains("cannot open shared object file"), "{why}");
}
