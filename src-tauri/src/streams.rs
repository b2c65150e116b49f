//! Children of the window that go on talking: a watched run, a chat, an export. Each is in one registry; a reload of
//! the page and the end of the window end them. None of them is a run: runs live by themselves.
//!
//! Channels to the page have no back-pressure, so lines are gathered and sent together, at most every 40 ms.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use hearth_engine::error::ErrorReport;
use serde::Serialize;

use crate::engine::{self, Answer};

/// How long lines are gathered.
const GATHER: Duration = Duration::from_millis(40);
/// Lines of one message; a replay of a long run comes in several.
const MOST_LINES: usize = 2000;
/// Of what a child complains, this much is kept: its end is what matters.
const STDERR_BYTES: usize = 8 << 10;

/// What the page is told of a child.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Message {
    /// JSON lines as the engine wrote them.
    Lines(Vec<String>),
    /// The last message.
    Ended {
        /// Exit code; absent where it was ended from outside.
        code: Option<i32>,
        /// Why, where it did not end well.
        error: Option<ErrorReport>,
    },
}

/// Where messages go: the page's channel, or a test.
pub(crate) type Sink = Box<dyn Fn(Message) + Send>;

struct Stream {
    child: Arc<Mutex<Child>>,
    stdin: Option<ChildStdin>,
}

/// All children that talk.
#[derive(Default)]
pub(crate) struct Streams(Arc<Mutex<Registry>>);

#[derive(Default)]
struct Registry {
    last_id: u32,
    streams: BTreeMap<u32, Stream>,
}

impl Streams {
    /// Starts a child; what it writes goes to `sink` until it ends or is ended.
    pub(crate) fn start(&self, mut command: Command, sink: Sink) -> Answer<u32> {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(engine::not_started)?;
        let stdin = child.stdin.take();
        let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
        let child = Arc::new(Mutex::new(child));
        let id = {
            let mut registry = self.lock();
            registry.last_id += 1;
            let id = registry.last_id;
            registry.streams.insert(id, Stream { child: Arc::clone(&child), stdin });
            id
        };

        let (lines, gathered) = mpsc::channel();
        thread::spawn(move || {
            for line in stdout.into_iter().flat_map(|out| BufReader::new(out).lines()) {
                let Ok(line) = line else { break };
                if !line.trim().is_empty() && lines.send(line).is_err() {
                    break;
                }
            }
        });
        let complaints = thread::spawn(move || stderr.map(tail).unwrap_or_default());
        let registry = Arc::clone(&self.0);
        thread::spawn(move || {
            let last_error = forward(&gathered, &sink);
            let complaints = complaints.join().unwrap_or_default();
            let code = exit_code(&child);
            let ended_here = lock(&registry).streams.remove(&id).is_none();
            // A child that the window itself ended has nothing to say any more.
            if !ended_here {
                let error = (code != Some(0)).then(|| last_error.unwrap_or_else(|| engine::ended(&complaints, code)));
                sink(Message::Ended { code, error });
            }
        });
        Ok(id)
    }

    /// Writes a line to a child.
    pub(crate) fn send(&self, id: u32, line: &str) -> Answer<()> {
        let mut registry = self.lock();
        let gone = || engine::error("window.engine_ended", "the engine is not there any more", "Try again.");
        let stdin = registry.streams.get_mut(&id).and_then(|stream| stream.stdin.as_mut()).ok_or_else(gone)?;
        writeln!(stdin, "{line}").and_then(|()| stdin.flush()).map_err(|_| gone())
    }

    /// Ends a child. One that is gone already is no error.
    pub(crate) fn end(&self, id: u32) {
        let stream = self.lock().streams.remove(&id);
        if let Some(stream) = stream {
            stream.end();
        }
    }

    pub(crate) fn end_all(&self) {
        let streams = std::mem::take(&mut self.lock().streams);
        for stream in streams.into_values() {
            stream.end();
        }
    }

    fn lock(&self) -> MutexGuard<'_, Registry> {
        lock(&self.0)
    }
}

impl Stream {
    fn end(self) {
        // Closing its input lets a chat end by itself; killing also ends one that is busy.
        drop(self.stdin);
        let _ = lock(&self.child).kill();
    }
}

/// Waits for the end without holding the child, so that it can be ended meanwhile.
fn exit_code(child: &Mutex<Child>) -> Option<i32> {
    loop {
        match lock(child).try_wait() {
            Ok(Some(status)) => return status.code(),
            Ok(None) => {}
            Err(_) => return None,
        }
        thread::sleep(Duration::from_millis(10));
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Passes lines on in batches until the child says no more; gives the last error line.
fn forward(lines: &Receiver<String>, sink: &Sink) -> Option<ErrorReport> {
    let mut last_error = None;
    while let Ok(first) = lines.recv() {
        let mut batch = vec![first];
        let until = Instant::now() + GATHER;
        while batch.len() < MOST_LINES {
            match lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(line) => batch.push(line),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => break,
            }
        }
        if let Some(report) = batch.iter().rev().find_map(|line| engine::error_line(line)) {
            last_error = Some(report);
        }
        sink(Message::Lines(batch));
    }
    last_error
}

/// The last [`STDERR_BYTES`] of what a child complains.
fn tail(mut from: impl Read) -> String {
    let mut kept = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        kept.extend_from_slice(&buffer[..n]);
        if kept.len() > 2 * STDERR_BYTES {
            kept.drain(..kept.len() - STDERR_BYTES);
        }
    }
    String::from_utf8_lossy(&kept).into_owned()
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    fn started(streams: &Streams, script: &str) -> (u32, Receiver<Message>) {
        let (send, receive) = mpsc::channel();
        let sink: Sink = Box::new(move |message| {
            let _ = send.send(message);
        });
        (streams.start(shell(script), sink).expect("sh starts"), receive)
    }

    const PATIENCE: Duration = Duration::from_secs(20);

    fn all(receive: &Receiver<Message>) -> (Vec<String>, Option<Message>) {
        let mut lines = Vec::new();
        loop {
            match receive.recv_timeout(PATIENCE) {
                Ok(Message::Lines(more)) => lines.extend(more),
                Ok(ended @ Message::Ended { .. }) => return (lines, Some(ended)),
                Err(_) => return (lines, None),
            }
        }
    }

    #[test]
    fn every_line_arrives_in_order_and_then_the_end() {
        let streams = Streams::default();
        let (_, receive) = started(&streams, "for i in $(seq 1 5000); do echo \"{\\\"n\\\":$i}\"; done");
        let (lines, ended) = all(&receive);
        assert_eq!(lines.len(), 5000);
        assert_eq!((lines[0].as_str(), lines[4999].as_str()), ("{\"n\":1}", "{\"n\":5000}"));
        assert_eq!(ended, Some(Message::Ended { code: Some(0), error: None }));
        assert!(streams.lock().streams.is_empty(), "an ended stream stays registered");
    }

    #[test]
    fn a_failing_child_ends_with_its_error_document_or_its_last_words() {
        let streams = Streams::default();
        let document = r#"echo '{"error":{"code":"run.not_found","message":"m","next_step":"n"}}'; exit 5"#;
        let (_, ended) = all(&started(&streams, document).1);
        let Some(Message::Ended { code: Some(5), error: Some(report) }) = ended else { panic!("{ended:?}") };
        assert_eq!(report.code, "run.not_found");

        let (_, ended) = all(&started(&streams, "echo panicked here >&2; exit 70").1);
        let Some(Message::Ended { error: Some(report), .. }) = ended else { panic!("{ended:?}") };
        assert!(report.message.contains("code 70") && report.message.contains("panicked here"), "{}", report.message);
    }

    #[test]
    fn what_is_sent_reaches_the_child_and_ending_it_says_nothing_more() {
        let streams = Streams::default();
        let (id, receive) = started(&streams, "while read line; do echo \"$line\"; done");
        streams.send(id, "{\"你好\":1}").expect("sent");
        assert_eq!(receive.recv_timeout(PATIENCE).expect("echo"), Message::Lines(vec!["{\"你好\":1}".into()]));
        streams.end(id);
        assert_eq!(receive.recv_timeout(PATIENCE), Err(RecvTimeoutError::Disconnected));
        assert_eq!(streams.send(id, "x").expect_err("gone").code, "window.engine_ended");
    }

    #[test]
    fn ending_all_ends_children_that_never_would() {
        let streams = Streams::default();
        let sleepers: Vec<_> = (0..3).map(|_| started(&streams, "echo {}; exec sleep 600").1).collect();
        for receive in &sleepers {
            receive.recv_timeout(PATIENCE).expect("it runs");
        }
        streams.end_all();
        for receive in sleepers {
            assert_eq!(receive.recv_timeout(PATIENCE), Err(RecvTimeoutError::Disconnected));
        }
    }
}
