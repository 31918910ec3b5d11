//! Dates as people write them → ISO 8601: `March 3rd, 2021` → `2021-03-03`.

use tealight_ops::rng::Stream;

use super::{Pair, PairSource};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// The first year, and how many there are.
const FIRST_YEAR: u64 = 1900;
const N_YEARS: u64 = 200;

/// The lengths of `the 23rd of September 2021` and `2021-09-23`.
pub(in crate::task::seq2seq) const MAX_LENS: (usize, usize) = (26, 10);

/// Draws days from 1900 to 2099, each in one of the [`FORMS`].
#[derive(Debug)]
pub(in crate::task::seq2seq) struct Dates;

/// A day of the calendar.
#[derive(Clone, Copy, Debug)]
struct Date {
    year: u64,
    month: u64,
    day: u64,
}

/// Ways to write a day; with dots it is day.month.year, with slashes month/day/year.
const FORMS: [fn(Date) -> String; 6] = [
    |date| format!("{} {}, {}", date.month_name(), date.ordinal(), date.year),
    |date| format!("{} {}, {}", &date.month_name()[..3], date.day, date.year),
    |date| format!("{} {} {}", date.day, date.month_name(), date.year),
    |date| format!("the {} of {} {}", date.ordinal(), date.month_name(), date.year),
    |date| format!("{}.{}.{}", date.day, date.month, date.year),
    |date| format!("{}/{}/{}", date.month, date.day, date.year),
];

impl Date {
    fn draw(stream: Stream) -> Self {
        let year = FIRST_YEAR + stream.below(0, N_YEARS);
        let month = 1 + stream.below(1, 12);
        Self { year, month, day: 1 + stream.below(2, days(year, month)) }
    }

    fn month_name(self) -> &'static str {
        MONTHS[self.month as usize - 1]
    }

    /// `1st`, `2nd`, `3rd`, `4th`, `11th`.
    fn ordinal(self) -> String {
        let ending = match (self.day, self.day % 10) {
            (11..=13, _) => "th",
            (_, 1) => "st",
            (_, 2) => "nd",
            (_, 3) => "rd",
            _ => "th",
        };
        format!("{}{ending}", self.day)
    }

    fn iso(self) -> String {
        format!("{:04}-{:02}-{:02}", self.year, self.month, self.day)
    }
}

/// Days of a month in the Gregorian calendar.
fn days(year: u64, month: u64) -> u64 {
    let is_leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        4 | 6 | 9 | 11 => 30,
        2 if is_leap => 29,
        2 => 28,
        _ => 31,
    }
}

impl PairSource for Dates {
    fn draw(&self, stream: Stream) -> Pair {
        let date = Date::draw(stream);
        let form = FORMS[stream.below(3, FORMS.len() as u64) as usize];
        Pair { source: form(date), target: date.iso() }
    }

    /// The day, in whatever form it is written.
    fn essence<'a>(&self, pair: &'a Pair) -> &'a str {
        &pair.target
    }

    fn alphabet(&self) -> Vec<char> {
        let others = "0123456789-/.,theofstndrd ".chars();
        let mut all: Vec<char> =
            MONTHS.iter().flat_map(|name| name.chars()).chain(others).collect();
        all.sort_unstable();
        all.dedup();
        all
    }
}

#[cfg(test)]
mod tests {
    use tealight_ops::rng::Purpose;

    use super::*;

    #[test]
    fn a_day_is_written_in_every_form() {
        let date = Date { year: 2021, month: 3, day: 3 };
        let written = FORMS.map(|form| form(date));
        let expected = [
            "March 3rd, 2021",
            "Mar 3, 2021",
            "3 March 2021",
            "the 3rd of March 2021",
            "3.3.2021",
            "3/3/2021",
        ];
        assert_eq!(written, expected);
        assert_eq!(date.iso(), "2021-03-03");
        let ordinals = [1, 2, 11, 12, 13, 21, 22, 23, 30, 31]
            .map(|day| Date { day, year: 1, month: 1 }.ordinal());
        let expected =
            ["1st", "2nd", "11th", "12th", "13th", "21st", "22nd", "23rd", "30th", "31st"];
        assert_eq!(ordinals, expected);
    }

    #[test]
    fn months_have_the_days_of_the_calendar() {
        let february = |year| days(year, 2);
        assert_eq!([1900, 2000, 2023, 2024].map(february), [28, 29, 28, 29]);
        assert_eq!((1..=12).map(|month| days(2023, month)).sum::<u64>(), 365);
    }

    #[test]
    fn what_is_drawn_fits_the_alphabet_and_the_lengths() {
        let stream = Stream::new(17, Purpose::Data);
        let alphabet = Dates.alphabet();
        let mut longest = (0, 0);
        for index in 0..5000 {
            let Pair { source, target } = Dates.draw(stream.fork(index));
            assert!(
                source.chars().chain(target.chars()).all(|c| alphabet.contains(&c)),
                "{source}"
            );
            longest = (longest.0.max(source.len()), longest.1.max(target.len()));
        }
        assert_eq!(longest, MAX_LENS);
    }
}
