import { spawnSync } from 'node:child_process'
import { readFileSync } from 'node:fs'

/** The files of the repository that the build of the image gets: those that .dockerignore admits. */
export function admittedToImage (): string[] {
  const [all, ...admitted] = readFileSync('.dockerignore', 'utf8').trimEnd().split('\n')
  if (all !== '*' || !admitted.every((line) => /^![\w./-]+$/.test(line))) throw new Error('.dockerignore is no list of what it admits')
  const { stdout } = spawnSync('git', ['ls-files', '-z', '--', ...admitted.map((line) => line.slice(1))], { encoding: 'utf8' })
  return stdout.split('\0').filter((path) => path !== '')
}
