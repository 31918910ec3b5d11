//! Starts the server, and ends it with Ctrl-C or SIGTERM.

use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::sync::Arc;

use anyhow::{Context, Result, anyhow};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::mpsc;

use super::app::App;
use super::counters::Counters;
use super::http::connections;
use super::http::security::{Access, Token};
use super::models::catalogue::Catalogue;
use super::models::worker::Settings;
use super::routes;
use crate::args::serve::{ANSWER_TIME, Serve};
use crate::runs::number_format::NumberFormat;
use crate::system::memory;
use crate::terminal::output::{log, print};

/// Serves until a signal ends it.
pub(crate) fn run(args: &Serve) -> Result<()> {
    let counters = Arc::new(Counters::default());
    NumberFormat::for_device(args.computation.precision, args.weights.device).warn_if_replaced();
    let settings = Settings {
        weights: args.weights,
        precision: args.computation.precision,
        counters: counters.clone(),
        memory: args.model_memory.unwrap_or_else(default_memory),
        answer_time: ANSWER_TIME,
        loading: Arc::default(),
    };
    let address = address(&args.host, args.port)?;
    let access = Access::new(&args.host, address.ip(), token(args))?;
    let catalogue = Catalogue::new(&args.paths, settings)?;
    let listener = listen(address)?;
    let port = listener.local_addr()?.port();
    let app = Arc::new(App::new(access, catalogue, counters));
    let runtime = Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let mut stopped = signals()?;
        tokio::spawn(connections::accept(listener, routes::router(app.clone())));
        announce(&app, args, port)?;
        stopped.recv().await;
        anyhow::Ok(())
    })?;
    log("stopped");
    end(runtime);
    Ok(())
}

/// The bytes for the parameters of models: half of the machine's memory, or no limit where that is not known.
fn default_memory() -> u64 {
    memory::total().map_or(u64::MAX, |total| total / 2)
}

/// The token that the arguments and the environment ask for.
fn token(args: &Serve) -> Token {
    if args.no_token {
        return Token::Absent;
    }
    let given = args.token.clone().or_else(|| std::env::var("TEALIGHT_TOKEN").ok());
    given.map_or(Token::Drawn, Token::Given)
}

/// The address that `host` stands for.
fn address(host: &str, port: u16) -> Result<SocketAddr> {
    let name = host.trim_start_matches('[').trim_end_matches(']');
    let addresses = (name, port).to_socket_addrs();
    let first = addresses.with_context(|| format!("`--host {host}` is no address"))?.next();
    first.ok_or_else(|| anyhow!("`--host {host}` has no address"))
}

fn listen(address: SocketAddr) -> Result<TcpListener> {
    let listener = TcpListener::bind(address).with_context(|| {
        let (ip, port) = (address.ip(), address.port());
        format!("cannot listen on {ip}, port {port}: choose another `--port`, or 0 for a free one")
    })?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Says where the server is.
fn announce(app: &App, args: &Serve, port: u16) -> Result<()> {
    let name = match args.host.parse() {
        Ok(IpAddr::V6(ip)) => format!("[{ip}]"),
        _ => args.host.clone(),
    };
    let query = app.access.token().map_or(String::new(), |token| format!("?token={token}"));
    print(&format!("http://{name}:{port}/{query}\n"))?;
    log(&format!("serving {} runs and models; Ctrl-C stops", app.catalogue.items().len()));
    Ok(())
}

/// Receives when a signal to stop comes.
fn signals() -> Result<mpsc::Receiver<()>> {
    let (stop, stopped) = mpsc::channel(1);
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
            // Caught from here on. `ctrl_c` would catch a signal only once its task runs, after the address is printed.
            let mut signal = signal(kind)?;
            let stop = stop.clone();
            tokio::spawn(async move {
                signal.recv().await;
                let _ = stop.try_send(());
            });
        }
    }
    #[cfg(not(unix))]
    tokio::spawn(async move {
        let _ = tokio::signal::ctrl_c().await;
        let _ = stop.try_send(());
    });
    Ok(stopped)
}

/// Closes all connections. A model that computes is not waited for: its thread ends with the process.
fn end(runtime: Runtime) {
    runtime.shutdown_background();
}
