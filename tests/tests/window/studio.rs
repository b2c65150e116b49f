//! The real window, driven: a driver of its own, one session at a time, waits with a reason when they fail.

use std::{
    fs,
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

use thirtyfour::{By, Capabilities, Key, WebDriver, WebElement, components::SelectElement, error::WebDriverError};

/// Why a step of a test did not happen.
pub(crate) type Outcome<T> = Result<T, Box<dyn std::error::Error>>;

/// For what needs no work of the engine.
pub(crate) const SOON: Duration = Duration::from_secs(20);
/// For what the engine has to do first.
pub(crate) const LATER: Duration = Duration::from_secs(120);
const GLANCE: Duration = Duration::from_millis(100);

/// WebKit's driver, and the home of the window's data. Ends the driver when dropped.
pub(crate) struct Driver {
    process: Child,
    port: u16,
    studio: PathBuf,
}

impl Driver {
    /// Starts a driver whose windows keep their runs in `home`.
    pub(crate) fn start(home: &Path) -> Outcome<Self> {
        // Nothing else on this machine asks for a free port between here and the driver's start but another test.
        let port = TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let studio = program("hearth-studio");
        for needed in [&studio, &program("hearth")] {
            if !needed.exists() {
                return Err(format!("{} is not built; `cargo xtask test window` builds it", needed.display()).into());
            }
        }
        let process = Command::new("WebKitWebDriver")
            .arg(format!("--port={port}"))
            .env("TAURI_AUTOMATION", "true")
            .env("TAURI_WEBVIEW_AUTOMATION", "true")
            .env("HEARTH_HOME", home)
            .stdin(Stdio::null())
            .spawn()
            .map_err(|error| format!("starting WebKitWebDriver (package webkit2gtk-driver): {error}"))?;
        Ok(Self { process, port, studio })
    }

    /// Opens the window.
    pub(crate) async fn open(&self) -> Outcome<Studio> {
        let mut capabilities = Capabilities::new();
        let options = serde_json::json!({ "binary": self.studio, "args": [] });
        capabilities.set("webkitgtk:browserOptions", options)?;
        let url = format!("http://127.0.0.1:{}", self.port);
        let deadline = Instant::now() + SOON;
        let session = loop {
            match WebDriver::new(&url, capabilities.clone()).await {
                Ok(session) => break session,
                Err(error) if Instant::now() > deadline => return Err(format!("opening the window: {error}").into()),
                Err(_) => tokio::time::sleep(GLANCE).await,
            }
        };
        session.set_window_rect(0, 0, 1280, 800).await?;
        let studio = Studio { session, programs: self.children()? };
        studio.wait("app", SOON).await?;
        Ok(studio)
    }

    /// The programs that the driver has started.
    fn children(&self) -> Outcome<Vec<PathBuf>> {
        let mut found = Vec::new();
        for thread in fs::read_dir(format!("/proc/{}/task", self.process.id()))? {
            let children = fs::read_to_string(thread?.path().join("children"))?;
            found.extend(children.split_whitespace().map(|id| Path::new("/proc").join(id)));
        }
        Ok(found)
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A program of the workspace, in the folder into which cargo builds them.
pub(crate) fn program(name: &str) -> PathBuf {
    let folder = std::env::var_os("HEARTH_PROGRAMS").map_or_else(
        || {
            let test = std::env::current_exe().expect("this test is a program");
            test.ancestors().nth(2).expect("target/debug/deps/window-…").to_owned()
        },
        PathBuf::from,
    );
    folder.join(name)
}

/// Where the screenshots of this test run are kept.
pub(crate) fn screenshots() -> PathBuf {
    std::env::var_os("HEARTH_SCREENSHOTS")
        .map_or_else(|| PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../target/window-test")), PathBuf::from)
}

/// An open window.
pub(crate) struct Studio {
    session: WebDriver,
    /// Its process, as a folder that is there while it lives.
    programs: Vec<PathBuf>,
}

impl Studio {
    /// The element with this test id, once it is there and shown.
    pub(crate) async fn wait(&self, id: &str, patience: Duration) -> Outcome<WebElement> {
        self.wait_until(id, patience, "shown", async |element| element.is_displayed().await).await
    }

    /// The first that this selector finds, once it is there and shown.
    pub(crate) async fn wait_css(&self, selector: &str, patience: Duration) -> Outcome<WebElement> {
        let is_shown = async |element: &WebElement| element.is_displayed().await;
        self.wait_at(By::Css(selector), selector, patience, "shown", is_shown).await
    }

    /// The element with this test id, once `holds` of it.
    pub(crate) async fn wait_until(
        &self,
        id: &str,
        patience: Duration,
        wanted: &str,
        holds: impl AsyncFn(&WebElement) -> Result<bool, WebDriverError>,
    ) -> Outcome<WebElement> {
        self.wait_at(By::Testid(id), id, patience, wanted, holds).await
    }

    async fn wait_at(
        &self,
        by: By,
        name: &str,
        patience: Duration,
        wanted: &str,
        holds: impl AsyncFn(&WebElement) -> Result<bool, WebDriverError>,
    ) -> Outcome<WebElement> {
        let deadline = Instant::now() + patience;
        let mut last = "not on the page".to_owned();
        loop {
            for element in self.session.find_all(by.clone()).await? {
                // An element that the page has just replaced is looked for again.
                match holds(&element).await {
                    Ok(true) => return Ok(element),
                    Ok(false) => last = element.outer_html().await.unwrap_or_default(),
                    Err(error) => last = error.to_string(),
                }
            }
            if Instant::now() > deadline {
                let last: String = last.chars().take(400).collect();
                let said = self.said().await;
                return Err(
                    format!("`{name}` was not {wanted} within {patience:?} ({last}); the page says: {said}").into()
                );
            }
            tokio::time::sleep(GLANCE).await;
        }
    }

    /// Waits until no part of the page says that it is busy: what is shown answers what was wished, and nothing that is
    /// about to come moves what is to be clicked.
    pub(crate) async fn settled(&self) -> Outcome<()> {
        let idle = By::Css("body:not(:has([aria-busy=true]))");
        self.wait_at(idle, "the page", LATER, "idle", async |_| Ok(true)).await.map(drop)
    }

    /// The errors and the status that the page shows.
    async fn said(&self) -> String {
        let mut said = Vec::new();
        for id in ["error", "status-line", "verdict"] {
            for element in self.session.find_all(By::Testid(id)).await.unwrap_or_default() {
                said.push(format!("{id}: {}", element.text().await.unwrap_or_default().replace('\n', " | ")));
            }
        }
        said.join("; ")
    }

    pub(crate) async fn click(&self, id: &str) -> Outcome<()> {
        self.click_at(By::Testid(id), id).await
    }

    /// The first that this selector finds, where a test id alone does not say which.
    pub(crate) async fn click_css(&self, selector: &str) -> Outcome<()> {
        self.click_at(By::Css(selector), selector).await
    }

    async fn click_at(&self, by: By, name: &str) -> Outcome<()> {
        self.settled().await?;
        // A button of the page that does nothing now says so and stays within reach.
        let is_clickable = async |element: &WebElement| {
            let is_off = element.attr("aria-disabled").await?.as_deref() == Some("true");
            Ok(!is_off && element.is_clickable().await?)
        };
        let element = self.wait_at(by, name, SOON, "clickable", is_clickable).await?;
        element.scroll_into_view().await?;
        element.click().await.map_err(|error| format!("clicking `{name}`: {error}").into())
    }

    /// Presses a key so many times where this element has the focus.
    pub(crate) async fn press(&self, id: &str, key: Key, times: usize) -> Outcome<()> {
        let element = self.wait(id, SOON).await?;
        element.scroll_into_view().await?;
        for _ in 0..times {
            element.send_keys(key.clone()).await.map_err(|error| format!("pressing a key at `{id}`: {error}"))?;
        }
        Ok(())
    }

    /// Chooses from a list by value.
    pub(crate) async fn select(&self, id: &str, value: &str) -> Outcome<()> {
        let list = self.wait(id, SOON).await?;
        list.scroll_into_view().await?;
        let chosen = SelectElement::new(&list).await?.select_by_value(value).await;
        chosen.map_err(|error| format!("choosing {value} in `{id}`: {error}"))?;
        self.value_is(id, value).await
    }

    /// Waits until a field or a list holds this value.
    pub(crate) async fn value_is(&self, id: &str, value: &str) -> Outcome<()> {
        let holds = async |element: &WebElement| Ok(element.value().await?.as_deref() == Some(value));
        self.wait_until(id, SOON, &format!("at {value}"), holds).await.map(drop)
    }

    pub(crate) async fn text(&self, id: &str) -> Outcome<String> {
        Ok(self.wait(id, SOON).await?.text().await?)
    }

    pub(crate) async fn text_has(&self, id: &str, part: &str) -> Outcome<()> {
        let holds = async |element: &WebElement| Ok(element.text().await?.contains(part));
        self.wait_until(id, SOON, &format!("saying “{part}”"), holds).await.map(drop)
    }

    /// Name and width of every segment of a memory bar.
    pub(crate) async fn bar(&self, id: &str) -> Outcome<Vec<(String, String)>> {
        const WIDTHS: &str = "return [...arguments[0].querySelectorAll('[data-segment]')]\
                              .map(segment => [segment.dataset.segment, segment.style.width])";
        let bar = self.wait(id, SOON).await?;
        Ok(self.session.execute(WIDTHS, vec![bar.to_json()?]).await?.convert()?)
    }

    /// Moves a slider `times` times over `values` and says how long each took until the bar had changed and was laid
    /// out: in the page, and in all. In between the page waits for the program's answer.
    pub(crate) async fn slide(&self, id: &str, bar: &str, values: &[u32], times: usize) -> Outcome<Vec<(f64, f64)>> {
        const SLIDE: &str = r"
            const [slider, bar, values, times, done] = arguments;
            const ask = window.fetch;
            let waited = 0;
            window.fetch = async (...request) => {
                const asked = performance.now();
                const answer = await ask(...request);
                waited += performance.now() - asked;
                return answer;
            };
            (async () => {
                const taken = [];
                for (let i = 0; i < times; i++) {
                    const changed = new Promise((resolve) => {
                        const observer = new MutationObserver(() => { observer.disconnect(); resolve(); });
                        observer.observe(bar, { attributes: true, subtree: true, attributeFilter: ['style'] });
                    });
                    waited = 0;
                    const begun = performance.now();
                    slider.value = String(values[i % values.length]);
                    slider.dispatchEvent(new Event('input', { bubbles: true }));
                    await changed;
                    bar.getBoundingClientRect();
                    const all = performance.now() - begun;
                    taken.push([all - waited, all]);
                    // Without a graphics device both cores are at work on the frame for a while.
                    await new Promise((resolve) => setTimeout(resolve, 100));
                }
                window.fetch = ask;
                done(taken);
            })();";
        let (slider, bar) = (self.wait(id, SOON).await?, self.wait(bar, SOON).await?);
        let arguments = vec![slider.to_json()?, bar.to_json()?, values.into(), times.into()];
        Ok(self.session.execute_async(SLIDE, arguments).await?.convert()?)
    }

    /// Replaces what a field holds and leaves the field.
    pub(crate) async fn type_into(&self, id: &str, text: &str) -> Outcome<()> {
        let field = self.wait(id, SOON).await?;
        field.scroll_into_view().await?;
        field.clear().await?;
        if text.chars().all(|c| c <= '\u{ffff}') {
            field.send_keys(text).await.map_err(|error| format!("typing into `{id}`: {error}"))?;
        } else {
            // WebKitWebDriver drops keys beyond the basic plane: such text arrives as pasted.
            const PASTE: &str = "arguments[0].value = arguments[1]; \
                                 arguments[0].dispatchEvent(new Event('input', { bubbles: true })); \
                                 arguments[0].dispatchEvent(new Event('change', { bubbles: true }));";
            self.session.execute(PASTE, vec![field.to_json()?, text.into()]).await?;
        }
        field.send_keys(thirtyfour::Key::Tab).await?;
        Ok(())
    }

    /// The first number that the element shows, once it shows one for which `holds`.
    pub(crate) async fn number(&self, id: &str, patience: Duration, holds: impl Fn(u64) -> bool) -> Outcome<u64> {
        let shown = async |element: &WebElement| Ok(first_number(&element.text().await?).is_some_and(&holds));
        let element = self.wait_until(id, patience, "a fitting number", shown).await?;
        first_number(&element.text().await?).ok_or_else(|| format!("`{id}` lost its number").into())
    }

    /// Waits until an attribute has one of these values and says which.
    pub(crate) async fn attribute_among(
        &self,
        id: &str,
        name: &str,
        values: &[&str],
        patience: Duration,
    ) -> Outcome<String> {
        let among = async |element: &WebElement| {
            let value = element.attr(name).await?;
            Ok(value.is_some_and(|value| values.contains(&value.as_str())))
        };
        let element = self.wait_until(id, patience, &format!("{name} among {values:?}"), among).await?;
        element.attr(name).await?.ok_or_else(|| format!("`{id}` lost its {name}").into())
    }

    /// Keeps what the window shows, once it stands, as `<name>.png`.
    pub(crate) async fn screenshot(&self, name: &str) -> Outcome<()> {
        // Charts draw on the frame after they are laid out.
        const DRAWN: &str =
            "const [done] = arguments; requestAnimationFrame(() => requestAnimationFrame(() => done()));";
        self.settled().await?;
        self.session.execute_async(DRAWN, Vec::new()).await?;
        self.keep_picture(name).await
    }

    async fn keep_picture(&self, name: &str) -> Outcome<()> {
        let folder = screenshots();
        fs::create_dir_all(&folder)?;
        self.session.screenshot(&folder.join(format!("{name}.png"))).await?;
        Ok(())
    }

    /// Closes the window the hard way, as a crash would: the session's end takes the whole program with it. The driver
    /// answers up to a tenth of a second before: a window that is opened then finds this one there and leaves it to it.
    pub(crate) async fn close(self) -> Outcome<()> {
        self.session.quit().await?;
        let deadline = Instant::now() + SOON;
        while self.programs.iter().any(|program| program.exists()) {
            if Instant::now() > deadline {
                return Err("the window was closed and its program lives on".into());
            }
            tokio::time::sleep(GLANCE).await;
        }
        Ok(())
    }

    /// Does `work`; where it fails, keeps a screenshot and closes the window before it passes the reason on.
    pub(crate) async fn run<T>(
        self,
        name: &str,
        work: impl AsyncFnOnce(&Studio) -> Outcome<T>,
    ) -> Outcome<(Studio, T)> {
        match work(&self).await {
            Ok(value) => Ok((self, value)),
            Err(error) => {
                let kept = self.keep_picture(&format!("failed-{name}")).await;
                let closed = self.close().await;
                let after = [kept, closed].into_iter().filter_map(Result::err).map(|error| format!("; {error}"));
                Err(format!("{error}{}", after.collect::<String>()).into())
            }
        }
    }
}

fn first_number(text: &str) -> Option<u64> {
    let start = text.find(|c: char| c.is_ascii_digit())?;
    // "1,200 of 3,000" and "1 200 / 3 000" are one number and another
    let grouped = text[start..].chars().take_while(|c| c.is_ascii_digit() || matches!(c, ',' | '\u{202f}' | '\u{a0}'));
    grouped.filter(char::is_ascii_digit).collect::<String>().parse().ok()
}

#[test]
fn the_first_number_keeps_its_groups() {
    assert_eq!(first_number("Step 1,200 of 3,000"), Some(1_200));
    assert_eq!(first_number("第 12 步，共 60 步"), Some(12));
    assert_eq!(first_number("–"), None);
}
