package main

import "io"

const runsVar = "X"

func makeRuns(lines string, stdout, stderr io.Writer) int { return 0 }
