import { spawnSync } from 'node:child_process'
import { existsSync, mkdirSync, readFileSync, rmSync, symlinkSync, writeFileSync } from 'node:fs'
import { join, resolve } from 'node:path'

const MOST = 1 << 28

function run (file: string, args: string[], options: { cwd?: string, input?: Buffer } = {}): Buffer {
  const { error, status, stdout, stderr } = spawnSync(file, args, { ...options, maxBuffer: MOST })
  if (error !== undefined || status !== 0) throw new Error(`${file} ${args.join(' ')}: ${error?.message ?? stderr}`)
  return stdout
}

/**
 * The release before: that of the last tag before this commit, which may have one itself, or, while there is none, the
 * build from before the last migration. Undefined in what is no clone, or one without the history.
 */
export function releaseBefore (clone = '.'): string | undefined {
  const git = (...args: string[]) => run('git', args, { cwd: clone }).toString().trim()
  try {
    return git('describe', '--tags', '--abbrev=0', 'HEAD^')
  } catch {
    try {
      const added = git('log', '-1', '--format=%H', '--diff-filter=A', '--', 'drizzle/*.sql')
      return git('rev-parse', '--verify', `${added}^`)
    } catch {
      return undefined
    }
  }
}

/** Builds a release below `dist`, unless it is there already; its command line. */
export function buildOf (release: string): string {
  const dir = join('dist', 'older', release)
  const cli = resolve(dir, 'dist/src/cli.js')
  const done = join(dir, 'built')
  if (existsSync(done)) return cli
  // Its packages are some hundred megabytes: one such build is enough.
  rmSync(join('dist', 'older'), { recursive: true, force: true })
  mkdirSync(dir, { recursive: true })
  run('tar', ['-x', '-C', dir], { input: run('git', ['archive', release]) })
  const lock = 'package-lock.json'
  if (readFileSync(join(dir, lock), 'utf8') === readFileSync(lock, 'utf8')) {
    symlinkSync(resolve('node_modules'), join(dir, 'node_modules'))
  } else run('npm', ['ci', '--ignore-scripts', '--prefer-offline', '--no-audit', '--no-fund'], { cwd: dir })
  run(process.execPath, ['scripts/build.mjs'], { cwd: dir })
  writeFileSync(done, '')
  return cli
}
