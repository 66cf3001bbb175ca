//! The solver's files: `id,lower,upper,size` in, the same with `offset` out; what `kilnc pack` does.
//!
//! The first line names the columns, in any order; other columns are ignored. Lines may end in CR LF, blank lines are
//! skipped, fields may not be quoted. Ids are any text and need not be unique. Offsets have no alignment here.

use std::fmt;

use super::{Buffer, Options, Problem, ProblemError, Solution, Unfit, solve_capacity};

/// What is wrong with a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CsvError {
    /// The file has no line.
    Empty,
    /// The first line lacks a column.
    NoColumn(&'static str),
    /// The first line names a column twice.
    TwoColumns(&'static str),
    /// A line has too few or too many fields.
    Fields {
        /// Line, from 1.
        line: usize,
        /// Fields it has.
        found: usize,
        /// Fields the first line has.
        expected: usize,
    },
    /// A field is not a whole number in range.
    Number {
        /// Line, from 1.
        line: usize,
        /// The column.
        column: &'static str,
        /// What stands there, shortened.
        found: String,
    },
    /// The lifetime of a buffer ends before it begins.
    Lifetime {
        /// Line, from 1.
        line: usize,
    },
    /// The buffers as a whole make no sense.
    Problem(ProblemError),
}

impl fmt::Display for CsvError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CsvError::Empty => write!(f, "empty file: expected the line id,lower,upper,size"),
            CsvError::NoColumn(name) => write!(f, "line 1: no column \"{name}\" (expected id,lower,upper,size)"),
            CsvError::TwoColumns(name) => write!(f, "line 1: two columns \"{name}\""),
            CsvError::Fields { line, found, expected } => {
                write!(f, "line {line}: {found} fields, expected {expected}")
            }
            CsvError::Number { line, column, found } => {
                write!(f, "line {line}: {column} is {found:?}, expected a whole number in range")
            }
            CsvError::Lifetime { line } => write!(f, "line {line}: upper is less than lower"),
            CsvError::Problem(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for CsvError {}

/// A buffer as a file names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// Its id, as written.
    pub id: String,
    /// Lifetime and size; alignment 1.
    pub buffer: Buffer,
}

/// Reads the buffers of a file, in its order.
pub fn parse(text: &str) -> Result<Vec<Row>, CsvError> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mut lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let (_, header) = lines.next().ok_or(CsvError::Empty)?;
    let names: Vec<&str> = header.split(',').map(str::trim).collect();
    let column = |name: &'static str| {
        let mut found = names.iter().enumerate().filter(|(_, n)| **n == name).map(|(at, _)| at);
        let at = found.next().ok_or(CsvError::NoColumn(name))?;
        if found.next().is_some() { Err(CsvError::TwoColumns(name)) } else { Ok(at) }
    };
    let (id, lower, upper, size) = (column("id")?, column("lower")?, column("upper")?, column("size")?);
    lines
        .map(|(at, text)| {
            let line = at + 1;
            let fields: Vec<&str> = text.split(',').map(str::trim).collect();
            if fields.len() != names.len() {
                return Err(CsvError::Fields { line, found: fields.len(), expected: names.len() });
            }
            let lower = number::<i64>(&fields, lower, line, "lower")?;
            let upper = number::<i64>(&fields, upper, line, "upper")?;
            let size = number::<u64>(&fields, size, line, "size")?;
            if upper < lower {
                return Err(CsvError::Lifetime { line });
            }
            Ok(Row { id: fields[id].to_string(), buffer: Buffer { lower, upper, size, alignment: 1 } })
        })
        .collect()
}

fn number<T: std::str::FromStr>(fields: &[&str], at: usize, line: usize, column: &'static str) -> Result<T, CsvError> {
    fields[at].parse().map_err(|_| CsvError::Number { line, column, found: fields[at].chars().take(40).collect() })
}

/// Writes buffers with their offsets, in the order given.
pub fn write(rows: &[Row], offsets: &[u64]) -> String {
    let mut text = String::from("id,lower,upper,size,offset\n");
    for (Row { id, buffer }, offset) in rows.iter().zip(offsets) {
        let Buffer { lower, upper, size, .. } = buffer;
        text += &format!("{id},{lower},{upper},{size},{offset}\n");
    }
    text
}

/// Why `kilnc pack` has no placement to print.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PackError {
    /// The file is unreadable.
    Input(CsvError),
    /// It does not fit.
    Unfit {
        /// The figures.
        unfit: Unfit,
        /// The ids of the buffers alive at the peak.
        culprits: Vec<String>,
    },
}

impl PackError {
    /// The exit code of the command: 1 does not fit, 2 bad input.
    pub fn exit_code(&self) -> u8 {
        match self {
            PackError::Unfit { .. } => 1,
            PackError::Input(_) => 2,
        }
    }
}

impl fmt::Display for PackError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PackError::Input(error) => write!(f, "{error}"),
            PackError::Unfit { unfit, culprits } => {
                let shown = 20;
                write!(f, "{unfit}; alive at the peak: {}", culprits[..culprits.len().min(shown)].join(", "))?;
                if culprits.len() > shown {
                    write!(f, " and {} more", culprits.len() - shown)?;
                }
                Ok(())
            }
        }
    }
}

impl std::error::Error for PackError {}

/// `kilnc pack`: reads buffers and places them within `capacity` bytes; [`write()`] prints both.
pub fn pack(csv_text: &str, capacity: u64, options: &Options) -> Result<(Vec<Row>, Solution), PackError> {
    let rows = parse(csv_text).map_err(PackError::Input)?;
    let buffers: Vec<Buffer> = rows.iter().map(|row| row.buffer).collect();
    let problem = Problem::from_intervals(&buffers).map_err(|error| PackError::Input(CsvError::Problem(error)))?;
    let solution = solve_capacity(&problem, capacity, options).map_err(|unfit| {
        let culprits = unfit.culprits.iter().map(|&i| rows[i].id.clone()).collect();
        PackError::Unfit { unfit, culprits }
    })?;
    Ok((rows, solution))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_columns_in_any_order_and_says_what_is_wrong() {
        let rows = parse("size,upper,id,lower,note\r\n4,3,b1,0,x\r\n\r\n5,9,,-3,\r\n").unwrap();
        assert_eq!(rows.len(), 2);
        assert_eq!((rows[0].id.as_str(), rows[0].buffer), ("b1", Buffer::new(0, 3, 4).aligned(1)));
        assert_eq!((rows[1].id.as_str(), rows[1].buffer), ("", Buffer::new(-3, 9, 5).aligned(1)));
        for (text, message) in [
            ("", "empty file: expected the line id,lower,upper,size"),
            ("\n\n", "empty file: expected the line id,lower,upper,size"),
            ("id,lower,upper\n", "line 1: no column \"size\" (expected id,lower,upper,size)"),
            ("id,lower,upper,size,id\n", "line 1: two columns \"id\""),
            ("id,lower,upper,size\na,1,2\n", "line 2: 3 fields, expected 4"),
            ("id,lower,upper,size\n\na,1,x,4\n", "line 3: upper is \"x\", expected a whole number in range"),
            ("id,lower,upper,size\na,1,2,-4\n", "line 2: size is \"-4\", expected a whole number in range"),
            (
                "id,lower,upper,size\na,1,2,18446744073709551616\n",
                "line 2: size is \"18446744073709551616\", expected a whole number in range",
            ),
            ("id,lower,upper,size\na,3,2,4\n", "line 2: upper is less than lower"),
        ] {
            assert_eq!(parse(text).unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn packs_and_exits() {
        let text = "id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\nb3,0,9,4\nb4,9,21,4\nb5,0,21,4\n";
        let (rows, solution) = pack(text, 12, &Options::default()).unwrap();
        let written = write(&rows, &solution.offsets);
        assert_eq!(solution.height, 12);
        assert!(written.starts_with("id,lower,upper,size,offset\nb1,0,3,4,"));
        assert_eq!(parse(&written).unwrap(), parse(text).unwrap());
        let unfit = pack(text, 11, &Options::thorough()).unwrap_err();
        assert_eq!(unfit.exit_code(), 1);
        assert_eq!(unfit.to_string(), "11 bytes are too few: 12 are alive at once; alive at the peak: b1, b3, b5");
        let huge = format!("id,lower,upper,size\na,0,1,{0}\nb,0,1,{0}\n", u64::MAX);
        let error = pack(&huge, 1, &Options::thorough()).unwrap_err();
        assert_eq!((error.exit_code(), error.to_string().as_str()), (2, "the sizes add up to more than 2^62 bytes"));
        let (rows, solution) = pack("id,lower,upper,size\n", 0, &Options::thorough()).unwrap();
        assert_eq!(write(&rows, &solution.offsets), "id,lower,upper,size,offset\n");
    }
}
