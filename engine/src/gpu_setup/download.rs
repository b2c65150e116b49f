//! One file of known size and SHA-256, fetched over HTTP. What was fetched is kept on disk, and the next attempt, in this process or
//! a later one, goes on behind it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use ureq::Agent;
use ureq::http::{Response, StatusCode, header};
use ureq::tls::{RootCerts, TlsConfig};

use super::error::Error;
use super::place::sha256_of;

/// How long and how often a server is asked.
#[derive(Clone, Copy, Debug)]
pub struct Patience {
    /// To be connected, and for the answer to begin.
    pub answer: Duration,
    /// Without a byte.
    pub silence: Duration,
    /// Attempts one after the other that bring nothing.
    pub n_attempts: u32,
    /// Before the second attempt; doubled for every further one, up to half a minute.
    pub pause: Duration,
}

impl Default for Patience {
    fn default() -> Self {
        Patience {
            answer: Duration::from_secs(30),
            silence: Duration::from_secs(30),
            n_attempts: 6,
            pause: Duration::from_secs(1),
        }
    }
}

/// Longest pause between two attempts.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// What is fetched.
pub(super) struct Remote<'a> {
    pub url: String,
    /// Its name in sentences.
    pub file: &'a str,
    pub bytes: u64,
    pub sha256: &'a str,
}

/// What a download says while it goes on.
pub(super) enum News<'a> {
    /// So many bytes of the file are on disk.
    At(u64),
    /// Nothing came; it is tried again.
    Again { reason: &'a str },
    /// All is there and is compared with what was published.
    Comparing,
}

/// How an attempt ended before the file was whole.
enum Stop {
    /// Another attempt may bring more.
    Interrupted(String),
    /// None will.
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(e: Error) -> Self {
        Stop::Failed(e)
    }
}

/// Asks as the system does: through the proxy that `HTTPS_PROXY`, `ALL_PROXY` or Windows' settings name, with the certificates that
/// the system trusts.
pub(super) fn agent(patience: &Patience) -> Agent {
    let tls = TlsConfig::builder().root_certs(RootCerts::PlatformVerifier).build();
    Agent::config_builder()
        .tls_config(tls)
        .http_status_as_error(false)
        .timeout_resolve(Some(patience.answer))
        .timeout_connect(Some(patience.answer))
        .timeout_recv_response(Some(patience.answer))
        .timeout_per_read(Some(patience.silence))
        .user_agent(concat!("hearth/", env!("CARGO_PKG_VERSION")))
        .build()
        .into()
}

/// Fetches `remote` into `part`, behind what is there already. On success `part` is the whole file with the right checksum.
///
/// # Errors
/// [`Error::WrongBytes`], with nothing kept; [`Error::Unreachable`], [`Error::Refused`], [`Error::WrongSize`], [`Error::Cancelled`] and
/// faults of the disk, with what was fetched kept.
pub(super) fn fetch(
    agent: &Agent,
    remote: &Remote<'_>,
    part: &Path,
    patience: &Patience,
    is_cancelled: &dyn Fn() -> bool,
    say: &mut dyn FnMut(News<'_>),
) -> Result<(), Error> {
    let mut was_kept = kept_bytes(part) > 0;
    let mut n_fruitless = 0;
    loop {
        let before = kept_bytes(part);
        say(News::At(before));
        if before != remote.bytes {
            match go_on(agent, remote, part, before, is_cancelled, say) {
                Ok(()) => {}
                Err(Stop::Failed(e)) => return Err(e),
                Err(Stop::Interrupted(reason)) => {
                    n_fruitless = if kept_bytes(part) > before { 1 } else { n_fruitless + 1 };
                    if n_fruitless >= patience.n_attempts {
                        return Err(Error::Unreachable { url: remote.url.clone(), n_attempts: n_fruitless, reason });
                    }
                    say(News::Again { reason: &reason });
                    let pause = patience.pause.saturating_mul(1 << (n_fruitless - 1).min(16));
                    wait(pause.min(LONGEST_PAUSE), is_cancelled)?;
                    continue;
                }
            }
        }
        say(News::Comparing);
        let found = File::open(part).and_then(sha256_of).map_err(|e| Error::io(part, e))?;
        if found == remote.sha256 {
            return Ok(());
        }
        remove(part)?;
        if !was_kept {
            let (file, expected) = (remote.file.into(), remote.sha256.into());
            return Err(Error::WrongBytes { file, expected, found });
        }
        // What an earlier process left may be what is wrong: once more from the beginning.
        was_kept = false;
    }
}

/// One request for what is missing behind the first `kept` bytes.
fn go_on(
    agent: &Agent,
    remote: &Remote<'_>,
    part: &Path,
    kept: u64,
    is_cancelled: &dyn Fn() -> bool,
    say: &mut dyn FnMut(News<'_>),
) -> Result<(), Stop> {
    // Longer than the file: nothing that could be gone on with.
    let kept = if kept > remote.bytes { 0 } else { kept };
    let mut request = agent.get(&remote.url).header(header::ACCEPT_ENCODING, "identity");
    if kept > 0 {
        request = request.header(header::RANGE, format!("bytes={kept}-"));
    }
    let response = request.call().map_err(|e| match e {
        // The address itself is wrong, and stays so.
        ureq::Error::BadUri(_) | ureq::Error::Http(_) | ureq::Error::InvalidProxyUrl => {
            Error::Unreachable { url: remote.url.clone(), n_attempts: 1, reason: e.to_string() }.into()
        }
        e => Stop::Interrupted(e.to_string()),
    })?;
    let from = begins_at(&response, remote, part, kept)?;
    let mut options = OpenOptions::new();
    if from > 0 {
        options.append(true)
    } else {
        options.write(true).create(true).truncate(true)
    };
    let mut file = options.open(part).map_err(|e| Error::io(part, e))?;
    let mut body = response.into_body().into_with_config().limit(u64::MAX).reader();
    let mut buffer = vec![0; 256 << 10];
    let mut at = from;
    loop {
        if is_cancelled() {
            return Err(Error::Cancelled.into());
        }
        let n = match body.read(&mut buffer) {
            Ok(n) => n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => return Err(Stop::Interrupted(e.to_string())),
        };
        if n == 0 && at < remote.bytes {
            return Err(Stop::Interrupted(format!("the answer ended after {at} of {} bytes", remote.bytes)));
        }
        at += n as u64;
        if at > remote.bytes {
            drop(file);
            remove(part)?;
            return Err(wrong_size(remote, at).into());
        }
        file.write_all(&buffer[..n]).map_err(|e| Error::io(part, e))?;
        say(News::At(at));
        if at == remote.bytes {
            return Ok(());
        }
    }
}

/// Where in the file the answer's body begins.
fn begins_at<T>(response: &Response<T>, remote: &Remote<'_>, part: &Path, kept: u64) -> Result<u64, Stop> {
    let text = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
    match response.status() {
        StatusCode::PARTIAL_CONTENT => {
            let said = text(header::CONTENT_RANGE).unwrap_or_default();
            match content_range(said) {
                Some((_, Some(total))) if total != remote.bytes => Err(wrong_size(remote, total).into()),
                Some((from, _)) if from == kept => Ok(kept),
                _ => Err(Stop::Interrupted(format!("the bytes from {kept} on were asked for and \"{said}\" came"))),
            }
        }
        // A server that knows no ranges, or a proxy that does not pass them on: from the beginning. The page with which a
        // hotel's network answers everything has another length or none, and must not cost what was fetched.
        StatusCode::OK => match text(header::CONTENT_LENGTH).and_then(|length| length.parse().ok()) {
            Some(length) if length != remote.bytes => Err(wrong_size(remote, length).into()),
            Some(_) => Ok(0),
            None => Err(Stop::Interrupted("the answer does not say how long it is".into())),
        },
        StatusCode::RANGE_NOT_SATISFIABLE => {
            remove(part)?;
            Err(Stop::Interrupted("the server has no bytes behind those that are here".into()))
        }
        status if status.is_server_error() || matches!(status.as_u16(), 408 | 429) => {
            Err(Stop::Interrupted(format!("the server answered with status {status}")))
        }
        status => Err(Error::Refused { url: remote.url.clone(), status: status.as_u16() }.into()),
    }
}

/// First byte and, where it is said, whole size from `bytes 100-199/200`.
fn content_range(text: &str) -> Option<(u64, Option<u64>)> {
    let (range, total) = text.trim().strip_prefix("bytes")?.trim_start().split_once('/')?;
    Some((range.split_once('-')?.0.parse().ok()?, total.parse().ok()))
}

fn wrong_size(remote: &Remote<'_>, found_bytes: u64) -> Error {
    Error::WrongSize { file: remote.file.into(), expected_bytes: remote.bytes, found_bytes }
}

fn kept_bytes(part: &Path) -> u64 {
    fs::metadata(part).map_or(0, |metadata| metadata.len())
}

fn remove(part: &Path) -> Result<(), Error> {
    match fs::remove_file(part) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::io(part, e)),
        _ => Ok(()),
    }
}

fn wait(pause: Duration, is_cancelled: &dyn Fn() -> bool) -> Result<(), Error> {
    let until = Instant::now() + pause;
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        if is_cancelled() {
            return Err(Error::Cancelled);
        }
        thread::sleep(left.min(Duration::from_millis(100)));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_read_or_not_believed() {
        assert_eq!(content_range("bytes 100-199/200"), Some((100, Some(200))));
        assert_eq!(content_range("bytes 0-99/*"), Some((0, None)));
        assert_eq!(content_range("bytes */200"), None);
        assert_eq!(content_range("items 0-1/2"), None);
    }
}
