//! How a machine becomes a node: request, wait, credentials, and their renewal.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use slipway_protocol::{
    BootTiming, EnrolRequest, Enrolment, ErrorCode, Failure, Identity, Inventory, MachineSettings, RenewRequest, Tpm,
};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, sleep_until};

use crate::config::Config;
use crate::discover::tpm::MachineTpm;
use crate::discover::{self, Roots};
use crate::screen::{Doing, Screen};
use crate::server::backoff::Backoff;
use crate::server::client::{Client, ClientError, Enrolled};
use crate::server::link;
use crate::server::machine_key::MachineKey;
use crate::server::tls::NodeCertificate;
use crate::server::told::{HAS_SYSTEM, Told};
use tracing::{debug, error, info, warn};

/// Wait before a refused machine tries again. An operator may have fixed the cause.
const AFTER_REFUSAL: Duration = Duration::from_secs(15);

/// Wait before a failed renewal is tried again.
const AFTER_FAILED_RENEWAL: Duration = Duration::from_secs(30);
/// Number of failed attempts to reach the server after which an interactive run gives up.
const IMPATIENT_FAILURES: u32 = 3;

/// What the machine reports about itself when it enrols.
#[derive(Clone)]
pub struct Facts {
    /// UUID, serial number and MAC addresses.
    pub identity: Identity,
    /// Takes the hardware inventory. May block.
    pub look: fn() -> Inventory,
    /// Id of this boot.
    pub boot_id: String,
    /// Milliseconds from the start of the kernel to the start of PID 1, in the boot image.
    pub kernel_to_init: Option<u64>,
    /// When the network got its address, in milliseconds since the start of the kernel, in the boot image.
    pub leased_at: Option<u64>,
    /// The machine's TPM, which need not exist.
    pub tpm: MachineTpm,
}

/// A node's access to its server. Clones share the credentials, which are replaced at each renewal.
#[derive(Clone)]
pub struct Session {
    config: Arc<Config>,
    facts: Arc<Facts>,
    key: Arc<MachineKey>,
    client: Arc<RwLock<Client>>,
    screen: Screen,
}

impl Session {
    /// Enrols, waiting as long as an operator takes to approve the machine, and then keeps the credentials fresh. With
    /// `impatient`, fails if the server refuses or cannot be reached in a few attempts.
    pub async fn open(
        config: Config,
        facts: Facts,
        key: MachineKey,
        screen: Screen,
        impatient: bool,
    ) -> Result<Self, ClientError> {
        screen.doing(Doing::Enrolling);
        let (client, renew_in) = enrol(&config, &facts, &key, &screen, impatient).await?;
        // The token is used only for the first enrolment: a machine that an operator decommissioned must not come back
        // by itself.
        let machine = MachineSettings { token: None, ..config.machine };
        let config = Config { machine, ..config };
        let session = Self {
            config: Arc::new(config),
            facts: Arc::new(facts),
            key: Arc::new(key),
            client: Arc::new(RwLock::new(client)),
            screen,
        };
        tokio::spawn(session.clone().keep_fresh(renew_in));
        Ok(session)
    }

    /// Returns a client with the current credentials.
    pub fn client(&self) -> Client {
        self.client.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The machine's own screen.
    pub fn screen(&self) -> &Screen {
        &self.screen
    }

    /// The id of this boot.
    pub fn boot_id(&self) -> &str {
        &self.facts.boot_id
    }

    /// Enrols again after the server rejected the credentials with the error `why`.
    pub async fn reopen(&self, why: &ClientError) -> Result<(), ClientError> {
        warn!("{}; enrolling again", Failure::of(why).in_one_line());
        let (client, _) = self.enrol().await?;
        self.replace(client);
        Ok(())
    }

    /// Tells the server the hardware of the machine once `complete` is true. A machine that enrolled before that had
    /// only the disks that were there.
    pub async fn tell_inventory(self, mut complete: watch::Receiver<bool>) {
        // An error means that there is nothing to wait for.
        let _ = complete.wait_for(|complete| *complete).await;
        let inventory = inventory(&self.facts).await;
        let mut backoff = Backoff::default();
        while let Err(error) = self.client().inventory(&inventory).await {
            // Such as of a server of an earlier version, which has no place for it. Other tasks enrol again.
            if !error.is_transient() && error.code() != Some(ErrorCode::Unauthenticated) {
                debug!("{}", Failure::of(&error).in_one_line());
                return;
            }
            sleep(backoff.next_wait()).await;
        }
    }

    async fn enrol(&self) -> Result<(Client, Duration), ClientError> {
        enrol(&self.config, &self.facts, &self.key, &self.screen, false).await
    }

    fn replace(&self, client: Client) {
        *self.client.write().unwrap_or_else(PoisonError::into_inner) = client;
    }

    async fn keep_fresh(self, first: Duration) {
        let mut due = Instant::now() + first;
        let mut end = due + first;
        loop {
            sleep_until(due).await;
            due = Instant::now();
            match self.renew(end).await {
                Ok(wait) => {
                    due += wait;
                    end = due + wait;
                }
                Err(error) => {
                    warn!("{}", Failure::of(&error).in_one_line());
                    due += AFTER_FAILED_RENEWAL;
                }
            }
        }
    }

    /// Renews the credentials while they are valid. Once they have expired, the server refuses the TLS handshake, and
    /// the machine must enrol again.
    async fn renew(&self, end: Instant) -> Result<Duration, ClientError> {
        let (client, wait) = if Instant::now() >= end {
            self.enrol().await?
        } else {
            let csr = self.key.request()?;
            match self.client().renew(&RenewRequest { csr }).await {
                Ok(enrolment) => credentials(&self.config, &self.key, enrolment)?,
                Err(error) if error.is_shut_out() => self.enrol().await?,
                Err(error) => return Err(error),
            }
        };
        self.replace(client);
        Ok(wait)
    }
}

/// Asks to enrol until the server accepts. Without `impatient`, fails only on errors that a retry cannot fix.
async fn enrol(
    config: &Config,
    facts: &Facts,
    key: &MachineKey,
    screen: &Screen,
    impatient: bool,
) -> Result<(Client, Duration), ClientError> {
    let anonymous = Client::new(config)?;
    let mut request = EnrolRequest {
        identity: facts.identity.clone(),
        inventory: Inventory::default(),
        csr: key.request()?,
        agent_version: env!("CARGO_PKG_VERSION").to_owned(),
        boot_id: facts.boot_id.clone(),
        bootstrap_token: config.machine.token.as_ref().map(|token| token.reveal().to_owned()),
        tpm: None,
        timing: None,
    };
    let mut backoff = Backoff::default();
    let mut told = Told::default();
    let mut failures = 0;
    let mut claim = Tpm::Absent;
    let mut answer: Option<Tpm> = None;
    loop {
        let has_answered = answer.is_some();
        // A TPM's driver may load late, so an absent TPM is looked for again. A TPM that does not answer is waited for
        // only once, not before each request.
        if claim == Tpm::Absent {
            claim = facts.tpm.claim().await;
        }
        request.tpm = Some(answer.take().unwrap_or_else(|| claim.clone()));
        request.timing = timing(facts);
        // Taken for each request, because disks may appear while the machine waits.
        request.inventory = inventory(facts).await;
        let wait = match anonymous.enrol(&request).await {
            Ok(Enrolled::Yes(enrolment)) => {
                info!("enrolled as node {}", enrolment.node);
                screen.change(|state| {
                    state.page = page(config, "nodes", &enrolment.node, None);
                    state.name = enrolment.name.clone().or(state.name.take());
                    state.trouble = None;
                    if matches!(state.doing, Doing::Enrolling | Doing::Held { .. }) {
                        state.doing = Doing::Idle;
                    }
                });
                return credentials(config, key, enrolment);
            }
            // If the server asks again, wait: the proof came too late, or the server was restarted.
            Ok(Enrolled::Prove(challenge)) => {
                let wait = if has_answered {
                    failures += 1;
                    if impatient && failures > IMPATIENT_FAILURES {
                        return Err(ClientError::Unproved);
                    }
                    let sentence = Failure::of(&ClientError::Unproved).in_one_line();
                    if told.is_due(&sentence, Instant::now()) {
                        warn!("{sentence}");
                    }
                    backoff.next_wait()
                } else {
                    Duration::ZERO
                };
                answer = Some(facts.tpm.prove(challenge).await);
                wait
            }
            Ok(Enrolled::Wait(wait, after)) => {
                // Logged on the console, where a person at the machine looks for the claim code.
                let sentence = format!("this machine waits for an operator: claim code {}", wait.claim_code);
                if told.is_due(&sentence, Instant::now()) {
                    warn!("{sentence}");
                    let has_system = discover::has_partitions(&Roots::default());
                    if has_system {
                        info!("{HAS_SYSTEM}");
                    }
                    screen.change(|state| {
                        state.page = page(config, "waiting", "", Some(&wait.claim_code));
                        state.has_system = has_system;
                        state.doing = Doing::Held { code: wait.claim_code.clone() };
                    });
                }
                screen.trouble(None);
                backoff.reset();
                // Do not wear out a TPM whose proof was refused with a new proof every other second.
                if has_answered { after.max(AFTER_REFUSAL) } else { after }
            }
            Err(error) if impatient && (!error.is_outage() || failures == IMPATIENT_FAILURES) => return Err(error),
            Err(error) => {
                failures += 1;
                let sentence = Failure::of(&error).in_one_line();
                if told.is_due(&sentence, Instant::now()) {
                    error!("{sentence}");
                }
                screen.trouble(Some(&sentence));
                if error.code().is_some() && !error.is_transient() { AFTER_REFUSAL } else { backoff.next_wait() }
            }
        };
        sleep(wait).await;
    }
}

async fn inventory(facts: &Facts) -> Inventory {
    tokio::task::spawn_blocking(facts.look).await.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic()))
}

/// Returns the address of the server's page for this machine. `None` if the server's URL has no path.
fn page(config: &Config, list: &str, entry: &str, code: Option<&str>) -> Option<String> {
    let mut url = config.server.clone();
    url.path_segments_mut().ok()?.pop_if_empty().push(list).extend(Some(entry).filter(|entry| !entry.is_empty()));
    if let Some(code) = code {
        url.query_pairs_mut().append_pair("code", code);
    }
    Some(url.into())
}

/// Returns how long the machine took from the start of the kernel until now. None if PID 1's start is unknown.
fn timing(facts: &Facts) -> Option<BootTiming> {
    let kernel_to_init = facts.kernel_to_init?;
    Some(BootTiming {
        kernel_to_init,
        init_to_lease: facts.leased_at.map(|at| at.saturating_sub(kernel_to_init)),
        init_to_enrol: link::uptime().saturating_sub(kernel_to_init),
    })
}

fn credentials(config: &Config, key: &MachineKey, enrolment: Enrolment) -> Result<(Client, Duration), ClientError> {
    let node = NodeCertificate { chain: enrolment.certificate, key: key.pem() };
    let client = Client::of_node(config, &node, enrolment.jwt)?;
    Ok((client, renew_in(enrolment.expires_in)))
}

/// Returns when to renew credentials that expire in `expires_in` seconds: after half of that, but at least 10 s, so
/// that a server with a wrong clock is not flooded, and at most 30 days, because the number comes from the network.
fn renew_in(expires_in: u64) -> Duration {
    Duration::from_secs((expires_in / 2).clamp(10, 30 * 24 * 60 * 60))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_renewed_in_time_whatever_the_server_says() {
        let seconds = |expires_in| renew_in(expires_in).as_secs();
        assert_eq!((seconds(0), seconds(86_400), seconds(u64::MAX)), (10, 43_200, 2_592_000));
        // The same sums as in `keep_fresh`: the time of the renewal, and the end of the credentials.
        let due = Instant::now() + renew_in(u64::MAX);
        assert!(due + renew_in(u64::MAX) > due);
    }
}
