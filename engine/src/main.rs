//! `hearth`: the engine in a terminal, and the process that the window starts.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
