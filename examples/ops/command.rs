//! From arguments to a command.

use outbox_core::{DeadLetterId, store::HeldReason};

pub(crate) const USAGE: &str = "\
usage: ops [--json] COMMAND

  status                        what waits, what is held, who relays, where the consumers stand
  held list [--reason REASON]   events that left the outbox because they cannot go now:
                                failing, parked, waiting, scheduled, dead
  dlq list [--consumer NAME]    dead letters: of the relay (outbox:17), of the consumers (consumer:42)
  dlq show ID [--payload]       one of them with its headers, and with its body if asked for
  dlq replay ID..               sends them on their way again
  dlq discard ID..              gives them up for good
  audit [--hours N] [--republish]
                                which published events the broker has lost, of the last N hours or of
                                all that the archive has; puts them back into the outbox if asked to

  --json                        lists as JSON, one object a line

Reads DATABASE_URL and NATS_URL. Ends with 0: done, 1: failed, 2: wrong usage.
";

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Invocation {
    pub(crate) json: bool,
    pub(crate) command: Command,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Command {
    Help,
    Status,
    HeldList { reason: Option<HeldReason> },
    DlqList { consumer: Option<String> },
    DlqShow { id: DeadLetterId, payload: bool },
    DlqReplay { ids: Vec<DeadLetterId> },
    DlqDiscard { ids: Vec<DeadLetterId> },
    Audit { hours: Option<u32>, republish: bool },
}

/// Understands the arguments, or says what is wrong with them.
pub(crate) fn parse(arguments: impl IntoIterator<Item = String>) -> Result<Invocation, String> {
    let mut given = Given::default();
    let mut arguments = arguments.into_iter();
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--help" | "-h" | "help" => {
                return Ok(Invocation {
                    json: false,
                    command: Command::Help,
                });
            }
            "--json" => given.json = true,
            "--payload" => given.payload = true,
            "--republish" => given.republish = true,
            "--reason" | "--consumer" | "--hours" => {
                let value = arguments.next();
                let value = value.ok_or_else(|| format!("{argument} needs a value"))?;
                given.named(&argument, value);
            }
            option if option.starts_with('-') => return Err(format!("unknown option {option:?}")),
            _ => given.words.push(argument),
        }
    }
    given.command()
}

/// What was given, before it is known whether it belongs together.
#[derive(Default)]
struct Given {
    words: Vec<String>,
    json: bool,
    payload: bool,
    republish: bool,
    hours: Option<String>,
    reason: Option<String>,
    consumer: Option<String>,
}

impl Given {
    fn named(&mut self, name: &str, value: String) {
        match name {
            "--reason" => self.reason = Some(value),
            "--hours" => self.hours = Some(value),
            _ => self.consumer = Some(value),
        }
    }

    fn command(mut self) -> Result<Invocation, String> {
        let words = std::mem::take(&mut self.words);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let command = match words[..] {
            [] => return Err("what is to be done?".to_owned()),
            ["status"] => Command::Status,
            ["held", "list"] => Command::HeldList {
                reason: self
                    .reason
                    .take()
                    .map(|name| name.parse().map_err(|_| format!("unknown reason {name:?}")))
                    .transpose()?,
            },
            ["dlq", "list"] => Command::DlqList {
                consumer: self.consumer.take(),
            },
            ["dlq", "show", id] => Command::DlqShow {
                id: parse_id(id)?,
                payload: std::mem::take(&mut self.payload),
            },
            ["dlq", "replay", ref ids @ ..] => Command::DlqReplay {
                ids: parse_ids(ids)?,
            },
            ["dlq", "discard", ref ids @ ..] => Command::DlqDiscard {
                ids: parse_ids(ids)?,
            },
            ["audit"] => Command::Audit {
                hours: self
                    .hours
                    .take()
                    .map(|hours| {
                        hours
                            .parse()
                            .map_err(|_| format!("{hours:?} is no number of hours"))
                    })
                    .transpose()?,
                republish: std::mem::take(&mut self.republish),
            },
            _ => return Err(format!("unknown command {:?}", words.join(" "))),
        };
        // What a command knows it has taken.
        let left = [
            ("--payload", self.payload),
            ("--republish", self.republish),
            ("--hours", self.hours.is_some()),
            ("--reason", self.reason.is_some()),
            ("--consumer", self.consumer.is_some()),
        ];
        if let Some((option, _)) = left.iter().find(|(_, left)| *left) {
            return Err(format!("{option} does not belong to this command"));
        }
        Ok(Invocation {
            json: self.json,
            command,
        })
    }
}

fn parse_id(id: &str) -> Result<DeadLetterId, String> {
    id.parse()
        .map_err(|error: outbox_core::InvalidDeadLetterId| error.to_string())
}

fn parse_ids(ids: &[&str]) -> Result<Vec<DeadLetterId>, String> {
    if ids.is_empty() {
        return Err("which dead letters? `ops dlq list` shows their ids".to_owned());
    }
    ids.iter().map(|id| parse_id(id)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, String> {
        let words = line.split_whitespace().map(str::to_owned);
        parse(words).map(|invocation| invocation.command)
    }

    #[test]
    fn options_may_stand_anywhere_and_belong_to_their_command() {
        let id = DeadLetterId::Consumer(7);
        assert_eq!(
            parsed("dlq --payload show consumer:7"),
            Ok(Command::DlqShow { id, payload: true })
        );
        let reason = Some(HeldReason::Parked);
        assert_eq!(
            parsed("--reason parked held list"),
            Ok(Command::HeldList { reason })
        );
        assert_eq!(
            parsed("audit --hours 6 --republish"),
            Ok(Command::Audit {
                hours: Some(6),
                republish: true
            })
        );
        for wrong in [
            "",
            "audit --hours soon",
            "status --republish",
            "dlq list --hours 6",
            "status now",
            "status --payload",
            "dlq list --reason dead",
            "held list --reason tired",
            "dlq show",
            "dlq show 7",
            "dlq replay",
            "dlq replay outbox:x",
            "dlq list --consumer",
            "--jsno status",
        ] {
            assert!(parsed(wrong).is_err(), "{wrong}");
        }
    }
}
