//! Files dropped on the window, passed on to the page that asked for them.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use serde::Serialize;
use tauri::ipc::Channel;
use tauri::{DragDropEvent, Manager, Window, WindowEvent};

/// What happens above the window.
#[derive(Clone, Debug, Serialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum Drop {
    /// Files are held over it.
    Over,
    /// They left.
    Leave,
    /// They were let go.
    Drop { paths: Vec<PathBuf> },
}

/// The page's ear; the last one that asked, because a reload forgets the one before.
#[derive(Default)]
pub(crate) struct Drops(Mutex<Option<Channel<Drop>>>);

impl Drops {
    pub(crate) fn listen(&self, channel: Channel<Drop>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(channel);
    }
}

pub(crate) fn on_window_event(window: &Window, event: &WindowEvent) {
    let WindowEvent::DragDrop(event) = event else { return };
    let drop = match event {
        DragDropEvent::Enter { .. } => Drop::Over,
        DragDropEvent::Drop { paths, .. } => Drop::Drop { paths: paths.clone() },
        DragDropEvent::Leave => Drop::Leave,
        _ => return,
    };
    let drops = window.state::<Drops>();
    let channel = drops.0.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(channel) = channel.as_ref() {
        // A page that is gone has no use for it.
        let _ = channel.send(drop);
    }
}
