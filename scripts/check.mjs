// Builds, which checks the types, and lints at the same time: each takes one core.
import { spawn } from 'node:child_process'
import { once } from 'node:events'

const codes = await Promise.all(['build', 'lint'].map(async (script) => {
  const child = spawn('npm', ['run', '--silent', script], { stdio: ['ignore', 'inherit', 'inherit'] })
  const [code] = await once(child, 'exit')
  return code
}))
process.exit(codes.every((code) => code === 0) ? 0 : 1)
