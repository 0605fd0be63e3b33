"""Tests of rules: what breakers are to do over given samples, told as a timeline, and incidents made into such tests.
In: test files with samples in an expanding notation or in files beside them, rules, or the log of a running service.
Out: which expectations held with the figures at each instant, what was covered, which mutants survived, and test files.

Public: `junit.junit_xml`, `mutation.Mutant`, `outcome.Outcome`, `outcome.Row`, `recording.Recording`,
`recording.record`, `run.TestRun`, `run.test`, `words.TITLES`, `words.cells_of`.
"""
