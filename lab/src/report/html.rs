//! The HTML side of a report: one file, one style sheet inside, no script, nothing fetched.

use std::fmt::Write as _;
use std::io;

use base64::Engine as _;

use super::{Align, Report, Table, Verdict, plot};

const STYLE: &str = "
:root{color-scheme:light}
body{font:15px/1.5 system-ui,-apple-system,'Segoe UI','DejaVu Sans',sans-serif;color:#1c2430;
background:#fff;max-width:1000px;margin:0 auto;padding:28px 24px 60px}
h1{font-size:26px;line-height:1.25;margin:0 0 10px;color:#182c78;border-bottom:2px solid #3caaeb;
padding-bottom:8px}
h2{font-size:18px;margin:34px 0 8px;color:#182c78}
p{margin:8px 0;max-width:80ch}
table{border-collapse:collapse;margin:6px 0 4px;font-variant-numeric:tabular-nums}
th,td{padding:4px 12px 4px 0;border-bottom:1px solid #e3e7ee;text-align:left;vertical-align:top}
th{font-weight:600;color:#48536a;border-bottom:2px solid #c9d2e0;font-size:13px}
td.n,th.n{text-align:right;padding-left:12px}
.remark,figcaption{color:#5b667a;font-size:13px;max-width:90ch}
.ok{color:#0d7a3f;font-weight:600}.bad{color:#b3261e;font-weight:600}
figure{margin:26px 0 0}
figure svg,figure img{width:100%;height:auto;display:block;border:1px solid #e3e7ee;border-radius:4px}
.wide{overflow-x:auto}
li{max-width:86ch;margin:3px 0}
@media print{body{padding:0}figure{break-inside:avoid}}
";

/// Text made safe for element content and attribute values.
pub(super) fn escape(s: &str) -> String {
    let mut out = String::with_capacity(s.len() + 8);
    for c in s.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            c if c.is_control() && c != '\n' && c != '\t' => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

/// The whole page.
pub(super) fn page(r: &Report) -> io::Result<String> {
    let mut h = String::with_capacity(64 * 1024);
    let title = escape(&r.title);
    let _ = write!(
        h,
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <title>{title}</title>\n<style>{STYLE}</style></head>\n<body>\n<h1>{title}</h1>\n"
    );
    for p in &r.intro {
        let _ = writeln!(h, "<p>{}</p>", escape(p));
    }
    if !r.verdicts.is_empty() {
        verdicts(&mut h, &r.verdicts);
    }
    for t in r.tables.iter().filter(|t| !t.after_plots) {
        table(&mut h, t);
    }
    for p in &r.plots {
        let svg = plot::svg(p)?;
        let _ = write!(h, "<figure aria-label=\"{}\">\n{svg}\n", escape(&p.title));
        if !p.caption.is_empty() {
            let _ = writeln!(h, "<figcaption>{}</figcaption>", escape(&p.caption));
        }
        h.push_str("</figure>\n");
    }
    for p in &r.pictures {
        if !p.title.is_empty() {
            let _ = writeln!(h, "<h2>{}</h2>", escape(&p.title));
        }
        let _ = writeln!(
            h,
            "<figure><img alt=\"{0}\" src=\"data:image/png;base64,{1}\"><figcaption>{0}</figcaption></figure>",
            escape(&p.caption),
            base64::engine::general_purpose::STANDARD.encode(&p.png)
        );
    }
    for t in r.tables.iter().filter(|t| t.after_plots) {
        table(&mut h, t);
    }
    if !r.notes.is_empty() {
        h.push_str("<h2>Notes</h2>\n<ul>\n");
        for n in &r.notes {
            let _ = writeln!(h, "<li>{}</li>", escape(n));
        }
        h.push_str("</ul>\n");
    }
    h.push_str("</body></html>\n");
    Ok(h)
}

fn verdicts(h: &mut String, list: &[Verdict]) {
    h.push_str(
        "<h2>What must hold</h2>\n<div class=\"wide\"><table><tr><th>check</th><th>bound</th>\
         <th>measured</th><th>holds</th></tr>\n",
    );
    for v in list {
        let (class, word) = if v.ok { ("ok", "yes") } else { ("bad", "NO") };
        let _ = writeln!(
            h,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td class=\"{class}\">{word}</td></tr>",
            escape(&v.name),
            escape(&v.bound),
            escape(&v.value)
        );
    }
    h.push_str("</table></div>\n");
}

fn table(h: &mut String, t: &Table) {
    let class = |a: Align| if a == Align::Right { " class=\"n\"" } else { "" };
    let _ = write!(
        h,
        "<h2>{}</h2>\n<div class=\"wide\"><table><tr>",
        escape(&t.title)
    );
    for (c, a) in &t.columns {
        let _ = write!(h, "<th{}>{}</th>", class(*a), escape(c));
    }
    h.push_str("</tr>\n");
    for row in &t.rows {
        h.push_str("<tr>");
        for (i, (_, a)) in t.columns.iter().enumerate() {
            let cell = row.get(i).map_or("", String::as_str);
            let _ = write!(h, "<td{}>{}</td>", class(*a), escape(cell));
        }
        h.push_str("</tr>\n");
    }
    h.push_str("</table></div>\n");
    if !t.remark.is_empty() {
        let _ = writeln!(h, "<p class=\"remark\">{}</p>", escape(&t.remark));
    }
}
