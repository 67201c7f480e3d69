#!/usr/bin/env python3
"""Writes congestion.csv: one step of congestion controls, from the formulas of the kernel's modules.

Unsigned 32-bit integers as in net/ipv4/tcp_bic.c, tcp_scalable.c and tcp_cong.c (tcp_cong_avoid_ai), every
ACK one segment, in congestion avoidance. BIC's estimate of segments per ACK is its first, 2 << 4.
"""
import csv
import pathlib


def bic_every(cwnd, last_max, most):
    """ACKs for one segment more (bictcp_update)."""
    if cwnd <= 14:
        return cwnd
    if cwnd < last_max:
        distance = (last_max - cwnd) // 4
        if distance > most:
            every = cwnd // most
        elif distance <= 1:
            every = cwnd * 20 // 4
        else:
            every = cwnd // distance
    elif cwnd < last_max + 4:
        every = cwnd * 20 // 4
    elif cwnd < last_max + most * 3:
        every = cwnd * 3 // (cwnd - last_max)
    else:
        every = cwnd // most
    return max(1, (every << 4) // (2 << 4))


def bic_after(cwnd, last_max):
    """Maximum to search for and threshold (bictcp_recalc_ssthresh)."""
    target = cwnd * (1024 + 819) // 2048 if cwnd < last_max else cwnd
    left = cwnd >> 1 if cwnd <= 14 else cwnd * 819 // 1024
    return target, max(left, 2)


rows = []
for most in (32, 16):
    for last_max in (10, 14, 100, 1000, 4995, 12000):
        for cwnd in sorted({
            2, 10, 14, 15, 50, 99, 100, 101, 103, 104, 120, 148, 195, 196, 500, 800, 991, 992, 996, 999, 1000, 1003,
            1004, 1048, 1096, 2000, 4000, 4900, 4987, 4991, 4995, 4999, 5100, 9600, 11990, 12000, 12095, 12096, 20000,
        }):
            target, left = bic_after(cwnd, last_max)
            rows.append(("bic", most, last_max, cwnd, bic_every(cwnd, last_max, most), target, left))
for cwnd in (2, 7, 50, 99, 100, 101, 1000, 12345, 100000):
    rows.append(("scalable", 0, 0, cwnd, min(cwnd, 100), cwnd, max(cwnd - (cwnd >> 3), 2)))
    rows.append(("reno", 0, 0, cwnd, cwnd, cwnd, max(cwnd >> 1, 2)))

with open(pathlib.Path(__file__).with_name("congestion.csv"), "w", newline="") as out:
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow("algorithm,max_increment,last_max,cwnd,acks_for_one_more,target_after_loss,ssthresh_after_loss".split(","))
    writer.writerows(rows)
