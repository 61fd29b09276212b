#!/usr/bin/env bash
rm -rf "$1/package_test"
