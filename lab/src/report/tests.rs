use super::*;

fn sample() -> Report {
    // Two streams in bursts of 2 ms: one window in five at 1 Gbps.
    let a: Vec<u64> = (0..5000)
        .map(|i| if i % 5 == 0 { 250_000 } else { 10_000 })
        .collect();
    let b: Vec<u64> = (0..5000)
        .map(|i| if i % 7 == 3 { 125_000 } else { 5_000 })
        .collect();
    let mut plot = Plot::bandwidth(
        "bandwidth",
        "Bandwidth of two <streams>",
        2_000_000,
        200_000_000,
        &[
            StreamWindows {
                name: "first & one",
                bytes: &a,
            },
            StreamWindows {
                name: "second",
                bytes: &b,
            },
        ],
    );
    plot.caption = "frame level, at the far port".into();
    plot.series
        .push(Series::level("capacity 500 Mbps", 500.0, 0.0, 10.0));
    Report {
        title: "A \"report\"".into(),
        intro: vec!["Two streams over one link.".into()],
        verdicts: vec![
            Verdict {
                name: "drops".into(),
                bound: "= 0 frames".into(),
                value: "0 frames".into(),
                ok: true,
            },
            Verdict {
                name: "rate".into(),
                bound: ">= 97 %".into(),
                value: "31 %".into(),
                ok: false,
            },
        ],
        tables: vec![
            Table::new("Streams", &["stream", "rate [Mbps]", "dropped [frames]"])
                .row(["first", "416.7", "0"])
                .row(["second", "177.1", "12"]),
        ],
        plots: vec![plot],
        pictures: vec![Picture {
            title: "Another run".into(),
            caption: "a <picture> made before".into(),
            png: b"\x89PNG".to_vec(),
        }],
        notes: vec!["Taken in a test.".into()],
    }
}

#[test]
fn writes_one_file_that_needs_nothing_else() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = sample().write(dir.path()).expect("report");
    let text = std::fs::read_to_string(&path).expect("page");
    assert!(text.len() < 2_000_000, "{} bytes", text.len());
    // A picture is inside the page itself.
    let text = text.replace("src=\"data:image/png;base64,", "");
    for outside in [
        "http:", "https:", "src=", "href=", "@import", "url(", "<script", "<link",
    ] {
        assert!(!text.contains(outside), "page holds {outside}");
    }
    for inside in [
        "<svg",
        "A &quot;report&quot;",
        "&lt;streams&gt;",
        "first &amp; one",
        "416.7",
        "iVBORw==",
        "a &lt;picture&gt; made before",
        "class=\"bad\">NO",
    ] {
        assert!(text.contains(inside), "page lacks {inside}");
    }
    let png = std::fs::read(dir.path().join("bandwidth.png")).expect("plot");
    assert_eq!(png.get(..8), Some(&b"\x89PNG\r\n\x1a\n"[..]));
    assert!(png.len() > 5_000, "{} bytes", png.len());
}

#[test]
fn plot_name_that_is_a_path_is_refused() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut r = sample();
    r.plots[0].name = "../up".into();
    let e = r.write(dir.path()).expect_err("refused");
    assert!(e.to_string().contains("../up"), "{e}");
    assert!(!dir.path().join("report.html").exists());
}

#[test]
fn empty_plot_and_short_rows_are_drawn() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut plot = Plot::new("none", "Nothing");
    plot.series.push(Series {
        name: "n".into(),
        color: Color::SUM,
        width: 1,
        points: vec![(f64::NAN, 1.0)],
    });
    let r = Report {
        plots: vec![plot],
        tables: vec![Table::new("t", &["a", "b"]).row(["only"]).row(["1", "2", "cut"])],
        ..Report::default()
    };
    let text = std::fs::read_to_string(r.write(dir.path()).expect("report")).expect("page");
    assert!(text.contains("<td>only</td><td class=\"n\"></td>"));
    assert!(!text.contains("cut"));
}

#[test]
fn decimation_keeps_peaks_and_order() {
    let mut points: Vec<(f64, f64)> = (0..100_000).map(|i| (f64::from(i), 1.0)).collect();
    points[50_017].1 = 900.0;
    points[50_020].1 = -3.0;
    let out = decimate(&points, 0.0, 100_000.0);
    assert!(out.len() <= 2 * MAX_COLUMNS, "{}", out.len());
    assert!(out.contains(&(50_017.0, 900.0)) && out.contains(&(50_020.0, -3.0)));
    assert!(out.windows(2).all(|w| w[0].0 < w[1].0), "order");
    assert_eq!(
        decimate(&points[..100], 10.0, 20.0).len(),
        11,
        "only what is inside"
    );
}

#[test]
fn mbps_is_bytes_over_window() {
    let s = Series::mbps("s", Color::SUM, 1, 0, 2_000_000, &[125_000, 0]);
    assert_eq!(s.points, vec![(0.001, 500.0), (0.003, 0.0)]);
    let p = Plot::bandwidth(
        "n",
        "t",
        2_000_000,
        4_000_000,
        &[
            StreamWindows {
                name: "a",
                bytes: &[100, 200, 300, 400],
            },
            StreamWindows {
                name: "b",
                bytes: &[1, 2],
            },
        ],
    );
    let sum = Series::mbps("", Color::SUM, 1, 0, 2_000_000, &[101, 202, 300, 400]);
    let wide = Series::mbps("", Color::MEAN, 1, 0, 4_000_000, &[303, 700]);
    assert_eq!(p.series[0].points, sum.points);
    assert_eq!(p.series[3].points, wide.points);
    assert_eq!(p.series[3].name, "sum, 4 ms");
}
