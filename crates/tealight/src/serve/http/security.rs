//! Who may send a request, and what browsers may do with the answer.
//!
//! ```text
//! Host      a loopback name, or the one given by `--host`: a name of a stranger that resolves to this machine
//!           (DNS rebinding) is refused
//! Origin    of a POST, if there is one: the host itself
//! token     a bearer token on all requests, unless the server was started without one; of a browser, a cookie with the
//!           number of its session, which it gets for the token
//! ```
//!
//! There are no CORS headers, so no page of another origin reads an answer.

use std::fmt::Write;
use std::hint::black_box;
use std::net::IpAddr;

use anyhow::{Context, Result, bail};
use axum::extract::Request;
use axum::http::header::{self, HeaderMap, HeaderName, HeaderValue};
use axum::http::uri::Authority;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use percent_encoding::percent_decode_str;
use sha2::{Digest, Sha256};

use crate::report::page::hash;
use crate::serve::fault::Fault;

/// The beginning of the cookie's name. The port of the address follows, because browsers send a cookie to all ports of a
/// host.
const COOKIE: &str = "tealight-session-";
/// The port of an address that names none.
const HTTP_PORT: u16 = 80;
/// The shortest token, in bytes.
const MIN_TOKEN: usize = 16;
/// The length in bytes of a secret that is drawn here.
const DRAWN: usize = 24;

/// The content types of a POST. A page of another origin can send none of them without asking first.
const CONTENT_TYPES: [&str; 4] =
    ["application/json", "image/png", "image/jpeg", "application/octet-stream"];

/// The policy for answers that are no pages.
const NOTHING: &str = "default-src 'none'; frame-ancestors 'none'";

/// Who may send a request.
#[derive(Debug)]
pub(in crate::serve) struct Access {
    /// The host given by `--host`.
    host: String,
    ip: IpAddr,
    secrets: Option<Secrets>,
}

/// What proves that a request may be answered.
#[derive(Debug)]
struct Secrets {
    token: String,
    /// What the cookies of browsers hold in place of the token; of no use to another server, nor after this one ended.
    session: String,
}

/// The token of a server.
#[derive(Debug)]
pub(in crate::serve) enum Token {
    /// Chosen by the user.
    Given(String),
    /// A random one.
    Drawn,
    /// None: every request is answered.
    Absent,
}

impl Access {
    /// The access to a server on `ip`, the address of `host`.
    ///
    /// # Errors
    /// If the given token is too short or has other characters than those allowed, if other machines can reach the address
    /// and there is no token, or if the system cannot provide random bytes.
    pub(in crate::serve) fn new(host: &str, ip: IpAddr, token: Token) -> Result<Self> {
        let token = match token {
            Token::Absent if !ip.is_loopback() => bail!(
                "`--host {host}` lets other machines connect, so it requires a token: leave out `--no-token`"
            ),
            Token::Given(token) if token.len() < MIN_TOKEN || !token.bytes().all(is_usable) => {
                bail!(
                    "the token must have at least {MIN_TOKEN} characters, all of them ASCII letters, digits, `-`, `_`, `.` or `~`"
                )
            }
            Token::Absent => None,
            Token::Given(token) => Some(token),
            Token::Drawn => Some(draw()?),
        };
        let secrets = token.map(|token| anyhow::Ok(Secrets { token, session: draw()? }));
        Ok(Self { host: host.to_owned(), ip, secrets: secrets.transpose()? })
    }

    /// The token, if one is required.
    pub(in crate::serve) fn token(&self) -> Option<&str> {
        self.secrets.as_ref().map(|secrets| &*secrets.token)
    }

    /// Whether the request may be answered.
    pub(in crate::serve) fn check(&self, request: &Request) -> Result<(), Fault> {
        let (method, headers) = (request.method(), request.headers());
        let host = host_of(request)?;
        self.check_host(&host)?;
        check_repetition(headers)?;
        if method == Method::POST {
            check_origin(headers, &host)?;
            check_site(headers)?;
        }
        self.check_secret(headers, &host)?;
        if ![Method::GET, Method::HEAD, Method::POST].contains(method) {
            let rule = format!("the method {method} is not supported: expected GET, HEAD or POST");
            return Err(Fault::new(StatusCode::METHOD_NOT_ALLOWED, rule));
        }
        check_path(request.uri().path())?;
        if method == Method::POST { check_content_type(headers) } else { Ok(()) }
    }

    fn check_host(&self, host: &Authority) -> Result<(), Fault> {
        let name = host.host().trim_start_matches('[').trim_end_matches(']');
        let ip: Option<IpAddr> = name.parse().ok();
        let is_given = name.eq_ignore_ascii_case(&self.host) || ip == Some(self.ip);
        let is_loopback =
            name.eq_ignore_ascii_case("localhost") || ip.is_some_and(|ip| ip.is_loopback());
        // Every address of the machine; a name could be that of a stranger.
        let is_any = self.ip.is_unspecified() && ip.is_some();
        if is_given || is_loopback || is_any {
            return Ok(());
        }
        let rule = format!(
            "the host `{name}` of the request is neither a loopback name nor the host that the server was started with"
        );
        Err(Fault::new(StatusCode::FORBIDDEN, rule))
    }

    fn check_secret(&self, headers: &HeaderMap, host: &Authority) -> Result<(), Fault> {
        let Some(Secrets { token, session }) = &self.secrets else { return Ok(()) };
        let mut is_right = bearer(headers).is_some_and(|sent| is_same(sent, token));
        for sent in cookies(headers, &cookie_name(host)) {
            is_right |= is_same(sent, session);
        }
        if is_right {
            return Ok(());
        }
        let rule = "a token is required: `Authorization: Bearer TOKEN`, or open the address that `tealight serve` \
                    printed, `/?token=TOKEN`, once in a browser";
        Err(Fault::new(StatusCode::UNAUTHORIZED, rule))
    }

    /// The answer to `/?token=…`: begins a session, and leads to the page without the token in its address. `None` for any
    /// other request.
    pub(in crate::serve) fn sign_in(&self, request: &Request) -> Option<Response> {
        let sent = request.uri().query()?.strip_prefix("token=")?;
        if request.uri().path() != "/" || request.method() != Method::GET {
            return None;
        }
        Some(self.session(request, sent).unwrap_or_else(Fault::into_response))
    }

    /// Leads to the page, with a session if `sent` is the token.
    fn session(&self, request: &Request, sent: &str) -> Result<Response, Fault> {
        let host = host_of(request)?;
        self.check_host(&host)?;
        let home = (header::LOCATION, "/".to_owned());
        let Some(Secrets { token, session }) = &self.secrets else {
            return Ok((StatusCode::SEE_OTHER, [home]).into_response());
        };
        if !is_same(sent, token) {
            let rule = "the token of the address is wrong";
            return Err(Fault::new(StatusCode::UNAUTHORIZED, rule));
        }
        let name = cookie_name(&host);
        let cookie = format!("{name}={session}; HttpOnly; SameSite=Strict; Path=/");
        Ok((StatusCode::SEE_OTHER, [home, (header::SET_COOKIE, cookie)]).into_response())
    }
}

/// The name of the cookie for the port that the browser sees, which a tunnel may have changed.
fn cookie_name(host: &Authority) -> String {
    format!("{COOKIE}{}", host.port_u16().unwrap_or(HTTP_PORT))
}

/// A random secret.
fn draw() -> Result<String> {
    let mut bytes = [0; DRAWN];
    getrandom::fill(&mut bytes).context("the system has no random bytes for a token")?;
    let mut text = String::with_capacity(2 * DRAWN);
    for byte in bytes {
        write!(text, "{byte:02x}")?;
    }
    Ok(text)
}

fn is_usable(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"-_.~".contains(&byte)
}

/// Whether two secrets are the same, in a time that depends on neither: their digests are compared as a whole.
fn is_same(one: &str, other: &str) -> bool {
    let [one, other] = [one, other].map(|text| Sha256::digest(text.as_bytes()));
    black_box(one.iter().zip(&other).fold(0, |differs, (a, b)| differs | (a ^ b))) == 0
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then_some(token)
}

/// The values of the cookies called `name`.
fn cookies<'a>(headers: &'a HeaderMap, name: &str) -> impl Iterator<Item = &'a str> {
    let lines = headers.get_all(header::COOKIE).into_iter().filter_map(|line| line.to_str().ok());
    let pairs = lines.flat_map(|line| line.split(';')).filter_map(|pair| pair.split_once('='));
    pairs.filter(move |(one, _)| one.trim() == name).map(|(_, value)| value.trim())
}

/// The host that the request is for; an address with a host of its own must name the same.
fn host_of(request: &Request) -> Result<Authority, Fault> {
    let mut sent = request.headers().get_all(header::HOST).into_iter();
    let host: Option<Authority> = match (sent.next(), sent.next()) {
        (Some(one), None) => one.to_str().ok().and_then(|host| host.parse().ok()),
        _ => None,
    };
    let of_address = request.uri().authority();
    let is_same = |host: &Authority| of_address.is_none_or(|other| other == host);
    let host = host.filter(|host| is_plain(host) && is_same(host));
    host.ok_or_else(|| Fault::bad("the request needs one valid header `Host`"))
}

/// Whether there is no more than a host and a port: no user, and a port that is a number.
fn is_plain(host: &Authority) -> bool {
    let port = host.as_str().strip_prefix(host.host());
    port.is_some_and(|port| port.is_empty() || host.port_u16().is_some())
}

/// Refuses a second header of a kind that decides whether a request is answered: which of both counts would be a guess.
fn check_repetition(headers: &HeaderMap) -> Result<(), Fault> {
    for name in ["authorization", "origin", "sec-fetch-site", "content-type"] {
        if headers.get_all(name).into_iter().nth(1).is_some() {
            return Err(Fault::bad(format!("there are two headers `{name}`")));
        }
    }
    Ok(())
}

/// Refuses a path whose escapes, such as `%ff`, are no text.
fn check_path(path: &str) -> Result<(), Fault> {
    match percent_decode_str(path).decode_utf8() {
        Ok(_) => Ok(()),
        Err(_) => Err(Fault::bad(format!("the path `{path}` is not UTF-8"))),
    }
}

/// A browser names the origin of a POST: it must be this server.
fn check_origin(headers: &HeaderMap, host: &Authority) -> Result<(), Fault> {
    let Some(origin) = headers.get(header::ORIGIN) else { return Ok(()) };
    let text = origin.to_str().unwrap_or_default();
    let place = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
    if place.is_some_and(|place| place.eq_ignore_ascii_case(host.as_str())) {
        return Ok(());
    }
    let rule = format!("the origin `{text}` of the request is not this server, `{host}`");
    Err(Fault::new(StatusCode::FORBIDDEN, rule))
}

/// A browser names the site of the page that made it send a request. A request that makes the server work comes from its
/// own pages, from the address bar, or from another program.
pub(in crate::serve) fn check_site(headers: &HeaderMap) -> Result<(), Fault> {
    let Some(site) = headers.get("sec-fetch-site") else { return Ok(()) };
    if ["none", "same-origin"].iter().any(|own| site == own) {
        return Ok(());
    }
    let text = site.to_str().unwrap_or_default();
    let rule =
        format!("`Sec-Fetch-Site: {text}`: a page of another origin may not make this server work");
    Err(Fault::new(StatusCode::FORBIDDEN, rule))
}

/// A POST is JSON or a picture. Without a content type it must come from outside of a browser: a browser names an origin,
/// and has a cookie.
fn check_content_type(headers: &HeaderMap) -> Result<(), Fault> {
    let kind = headers.get(header::CONTENT_TYPE).map(|kind| kind.to_str().unwrap_or_default());
    let kind = kind.map(|kind| kind.split(';').next().unwrap_or_default().trim());
    let is_known = match kind {
        Some(kind) => CONTENT_TYPES.iter().any(|known| kind.eq_ignore_ascii_case(known)),
        None => {
            ["origin", "sec-fetch-site", "cookie"].iter().all(|one| !headers.contains_key(*one))
        }
    };
    if is_known {
        return Ok(());
    }
    let rule = format!(
        "the content type `{}` is not supported: expected {}",
        kind.unwrap_or_default(),
        CONTENT_TYPES.join(", ")
    );
    Err(Fault::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, rule))
}

/// Adds to an answer what a browser may do with it.
pub(in crate::serve) fn restrict(headers: &mut HeaderMap) {
    for (name, value) in [
        ("x-content-type-options", "nosniff"),
        ("referrer-policy", "no-referrer"),
        ("x-frame-options", "DENY"),
        ("cross-origin-resource-policy", "same-origin"),
        ("cross-origin-opener-policy", "same-origin"),
        ("cache-control", "no-store"),
    ] {
        headers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
    }
    headers.entry(header::CONTENT_SECURITY_POLICY).or_insert(HeaderValue::from_static(NOTHING));
}

/// The policy of a page: scripts and styles with these texts only, and connections to this server.
pub(in crate::serve) fn policy_of_page(scripts: &[&str], styles: &[&str]) -> String {
    let (scripts, styles) = (digests(scripts), digests(styles));
    format!(
        "default-src 'none'; script-src{scripts}; style-src{styles}; img-src 'self' data: blob:; connect-src 'self'; \
         base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    )
}

/// The digests of texts, in the words of the policy; `'none'` if there are none.
fn digests(texts: &[&str]) -> String {
    let digest = |text: &&str| format!(" {}", hash(text));
    if texts.is_empty() { " 'none'".to_owned() } else { texts.iter().map(digest).collect() }
}
