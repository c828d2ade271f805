//! Who this process is among those that were started together.

use std::fmt::Display;
use std::str::FromStr;

use crate::error::{Error, Result};

/// Port where rank 0 listens unless the launcher says otherwise: torch's.
const DEFAULT_PORT: u16 = 29500;

/// `True` when torchrun's own process listens at `MASTER_PORT`, for workers that use torch's store.
const TORCHRUN_LISTENS: &str = "TORCHELASTIC_USE_AGENT_STORE";

/// A process among others, as its launcher tells it through the environment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Launch {
    /// This process, counted from 0 over all machines.
    pub rank: usize,
    /// Processes on all machines.
    pub world_size: usize,
    /// This process, counted from 0 on its machine: the device to use.
    pub local_rank: usize,
    /// Where rank 0 can be reached.
    pub address: String,
    /// And at which port: `MASTER_PORT`, or the one after it where torchrun listens at that itself.
    pub port: u16,
}

/// Variables of a launcher: rank, world size, rank on the machine.
struct Launcher {
    name: &'static str,
    variables: [&'static str; 3],
}

/// In the order in which they are looked for: torchrun may run under Slurm, and Slurm's variables are also there in an
/// allocation without `srun`, where they say that there is one process.
const LAUNCHERS: [Launcher; 3] = [
    Launcher { name: "torchrun", variables: ["RANK", "WORLD_SIZE", "LOCAL_RANK"] },
    Launcher {
        name: "Open MPI",
        variables: ["OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"],
    },
    Launcher { name: "Slurm", variables: ["SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"] },
];

impl Launch {
    /// Reads the variables of torchrun, Open MPI or Slurm; `None` for a process that was started alone.
    ///
    /// `MASTER_ADDR` and `MASTER_PORT` say where rank 0 is; without them it is the first host of Slurm, or this machine.
    ///
    /// # Errors
    /// [`Error::Launch`] for a variable that is missing or makes no sense.
    pub fn from_environment() -> Result<Option<Self>> {
        Self::from_variables(|name| std::env::var(name).ok())
    }

    /// Like [`Self::from_environment`], from any source of variables.
    ///
    /// # Errors
    /// As [`Self::from_environment`].
    pub fn from_variables(get: impl Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        let given = |name: &str| get(name).is_some();
        let Some(Launcher { name, variables }) =
            LAUNCHERS.iter().find(|launcher| launcher.variables[..2].iter().all(|v| given(v)))
        else {
            return Ok(None);
        };
        let [rank_name, size_name, local_name] = *variables;
        let rank: usize = parse(rank_name, get(rank_name), "a number from 0")?;
        let world_size: usize = parse(size_name, get(size_name), "a number from 1")?;
        if rank >= world_size {
            let expected = format!("a number below {size_name} ({world_size})");
            return Err(fault(rank_name, rank, expected));
        }
        let local_rank = match get(local_name) {
            Some(value) => parse(local_name, Some(value), "a number from 0")?,
            None if world_size == 1 => 0,
            None => {
                return Err(fault(
                    local_name,
                    "absent",
                    format!("a number from 0, as {name} sets it"),
                ));
            }
        };
        let host = || {
            get("SLURM_LAUNCH_NODE_IPADDR")
                .or_else(|| get("SLURM_NODELIST").map(|list| first_host(&list)))
        };
        let slurm = if *name == "Slurm" { host() } else { None };
        let address = get("MASTER_ADDR").or(slurm).unwrap_or_else(|| "127.0.0.1".to_owned());
        let port: u16 = match get("MASTER_PORT") {
            None => DEFAULT_PORT,
            port => parse("MASTER_PORT", port, "a port, 1 to 65535")?,
        };
        let is_taken = get(TORCHRUN_LISTENS).is_some_and(|value| value == "True");
        let port = port.checked_add(u16::from(is_taken)).ok_or_else(|| {
            let expected = "a port below, as torchrun listens there itself".to_owned();
            fault("MASTER_PORT", port, expected)
        })?;
        Ok(Some(Self { rank, world_size, local_rank, address, port }))
    }
}

/// The first of Slurm's list of hosts, such as `node[07-09,12],login`.
fn first_host(list: &str) -> String {
    let end = list.find([',', '[']).unwrap_or(list.len());
    let (stem, rest) = list.split_at(end);
    let number = rest.strip_prefix('[').map(|range| {
        let end = range.find(['-', ',', ']']).unwrap_or(range.len());
        &range[..end]
    });
    format!("{stem}{}", number.unwrap_or_default())
}

fn parse<T: FromStr>(variable: &str, value: Option<String>, expected: &str) -> Result<T> {
    let value = value.unwrap_or_default();
    value.trim().parse().map_err(|_| fault(variable, format!("`{value}`"), expected.to_owned()))
}

fn fault(variable: &str, found: impl Display, expected: String) -> Error {
    Error::Launch { variable: variable.to_owned(), found: found.to_string(), expected }
}
