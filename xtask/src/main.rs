//! Set-up and chores of the repository: `cargo xtask demo|test|app|bench|cuda|setup`. One file per chore.

#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a chore speaks to the terminal")]

mod app;
mod bench;
mod cuda;
mod demo;
mod display;
mod model;
mod process;
mod repository;
mod setup;
mod test;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Hearth's chores. `demo` and `test` install what they need and do the rest.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Fine-tune a small model on the bundled examples, export it merged with its proof, show before and after
    Demo(demo::Options),
    /// Run every test: Rust, frontend, the page in Chromium, the real window under a virtual display
    Test(test::Options),
    /// Build and open the window
    App(app::Options),
    /// Measure the training step beside its peers and planned against measured memory; `bench card` on a graphics card
    Bench(bench::Options),
    /// Set up the CUDA toolkit and build `hearth-cuda`, the engine for graphics cards
    Cuda,
    /// Install what building and testing need, and nothing else
    Setup,
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().chore {
        Chore::Demo(options) => demo::demo(&options),
        Chore::Test(options) => test::test(&options),
        Chore::App(options) => app::app(&options),
        Chore::Bench(options) => bench::bench(&options),
        Chore::Cuda => cuda::cuda(),
        Chore::Setup => setup::everything(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("\nerror: {error:#}");
            ExitCode::FAILURE
        }
    }
}
