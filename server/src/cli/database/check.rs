//! `slipway-server database check`.

use anyhow::bail;
use slipway_server::base::data::{DataDir, Place};
use slipway_server::operate::check::{Report, check_database};
use slipway_server::store::Store;

use crate::cli::print_line;

pub async fn run(place: &Place) -> anyhow::Result<()> {
    let data = DataDir::open(place)?;
    let name = data.database_name();
    let store = Store::read_only_of(&data);
    let Report { checked, problems, unjudged } = check_database(&store, &name, &mut super::teller()).await?;
    store.close().await;
    for line in &checked {
        print_line(&format!("checked whether {line}"))?;
    }
    for problem in &problems {
        print_line(&format!("problem: {problem}"))?;
    }
    if let Some(unjudged) = &unjudged {
        print_line(&format!("not checked: {unjudged}"))?;
    }
    match problems.len() {
        0 if unjudged.is_some() => print_line(&format!("no problems were found in what this version knows of {name}")),
        0 => print_line(&format!("no problems were found in {name}")),
        1 => bail!("1 problem was found in {name}"),
        count => bail!("{count} problems were found in {name}"),
    }
}
