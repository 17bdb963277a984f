// runs: no database
import { chmodSync, chownSync, mkdirSync, symlinkSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { rootCertificates } from 'node:tls'
import t from 'tap'
import { ConfigError, loadConfig, readKeyFile } from '../../src/config.ts'
import { scratchDirectory } from '../helpers/process.ts'

const KEY = Buffer.alloc(32, 7).toString('base64')
const OTHER = Buffer.alloc(32, 9).toString('base64')
const WRAPPED = Buffer.from('vault:v1:abc').toString('base64')
const URL_WITH_PASSWORD = 'postgres://app:hunter2hunter2@db:5432/strongroom'

function refusal (act: () => unknown) {
  try {
    act()
  } catch (error) {
    if (error instanceof ConfigError) return error.message
    throw error
  }
  return undefined
}

t.test('nothing set: the defaults of the operating contract', async (t) => {
  t.same(loadConfig({}), {
    host: '127.0.0.1',
    port: 8080,
    databaseUrl: undefined,
    databasePool: 10,
    databaseWait: 60,
    workers: 1,
    dataDir: './data',
    publicUrl: undefined,
    trustProxy: false,
    smtp: undefined,
    mailFrom: undefined,
    redis: undefined,
    masterKey: undefined,
    masterKeyFile: undefined,
    masterKeysPrevious: [],
    keyCommands: undefined,
    rateLimits: { api: 100, oauth: 10, keyRotation: 10, billing: 10, longOperations: 60 },
    defaultPlan: 'self-hosted',
    invoices: { seller: { name: '', address: '', tax_id: '' }, note: '', paymentDetails: '', dueDays: 14 },
    shutdownDelay: 0,
    bodyLimit: 2 * 1024 * 1024,
    allowRevealingKeyProof: false,
    docsUi: true,
    console: true,
    logLevel: 'info',
    logClientAddress: 'network',
    corsOrigins: [],
    metricsToken: undefined,
    outgoing: { allow: [], authorities: undefined },
    traces: undefined
  })
  const names = [
    'HOST', 'PORT', 'DATABASE_URL', 'DATA_DIR', 'MASTER_KEY', 'MASTER_KEY_FILE', 'REDIS_URL', 'WORKERS',
    'METRICS_TOKEN', 'DOCS_UI', 'CONSOLE'
  ]
  t.same(loadConfig(Object.fromEntries(names.map((name) => [name, '']))), loadConfig({}), 'empty is not set')
})

t.test('every variable reaches the configuration', async (t) => {
  t.same(loadConfig({
    HOST: '::',
    PORT: '0',
    DATABASE_URL: URL_WITH_PASSWORD,
    DATABASE_POOL: '20',
    DATABASE_WAIT: '0',
    DATA_DIR: '/data',
    PUBLIC_URL: 'https://secrets.example.com/base',
    TRUST_PROXY: '10.0.0.0/8, fd00::/8,192.0.2.1,loopback',
    SMTP_URL: 'smtps://post%40example.com:p%3Aw@mail.example.com',
    MAIL_FROM: 'Söhne & Co <secrets@example.com>',
    REDIS_URL: 'rediss://limits:p%40w@cache.example.com:6380/2',
    MASTER_KEY: `k2:${KEY}`,
    MASTER_KEYS_PREVIOUS: `k1:${OTHER}, k0:exec:${WRAPPED}`,
    MASTER_KEY_WRAP_COMMAND: ' vault write  -field=ciphertext transit/encrypt/strongroom plaintext=-',
    MASTER_KEY_UNWRAP_COMMAND: '["sh", "-c", "vault read | base64 -d"]',
    MASTER_KEY_COMMAND_TIMEOUT: '30',
    RATE_LIMIT_API: '0',
    RATE_LIMIT_OAUTH: '1',
    RATE_LIMIT_KEY_ROTATION: '2',
    RATE_LIMIT_BILLING: '1000000',
    RATE_LIMIT_LONG_OPERATIONS: '7',
    DEFAULT_PLAN: 'team',
    INVOICE_SELLER_NAME: ' Größe & Söhne ',
    INVOICE_SELLER_ADDRESS: '1 Harbour Road | Dublin|Ireland',
    INVOICE_SELLER_TAX_ID: 'IE1234567FA',
    INVOICE_NOTE: 'Reverse charge|VAT is due by the recipient',
    INVOICE_PAYMENT_DETAILS: 'IBAN IE29 AIBK 9311 5212 3456 78|BIC AIBKIE2D',
    INVOICE_DUE_DAYS: '30',
    SHUTDOWN_DELAY: '5',
    BODY_LIMIT: '512KiB',
    ALLOW_REVEALING_KEY_PROOF: '1',
    DOCS_UI: 'off',
    CONSOLE: '0',
    LOG_LEVEL: 'silent',
    LOG_CLIENT_ADDRESS: 'full',
    CORS_ORIGINS: 'https://app.example.com, http://localhost:3000',
    METRICS_TOKEN: 'sixteen-visible!',
    OTEL_EXPORTER_OTLP_ENDPOINT: 'https://collector.example:4318/base',
    OTEL_EXPORTER_OTLP_HEADERS: 'X-Api-Key=a%2Cb, other=c',
    OTEL_SERVICE_NAME: 'secrets',
    OTEL_TRACES_SAMPLER_ARG: '0.25',
    OUTGOING_ALLOW: 'git.example.com,10.0.0.0/8:443',
    WORKERS: '4'
  }), {
    host: '::',
    port: 0,
    databaseUrl: URL_WITH_PASSWORD,
    databasePool: 20,
    databaseWait: 0,
    workers: 4,
    dataDir: '/data',
    publicUrl: 'https://secrets.example.com/base',
    trustProxy: ['10.0.0.0/8', 'fd00::/8', '192.0.2.1', 'loopback'],
    smtp: { host: 'mail.example.com', port: 465, secure: true, auth: { user: 'post@example.com', pass: 'p:w' } },
    mailFrom: { name: 'Söhne & Co', address: 'secrets@example.com' },
    redis: { host: 'cache.example.com', port: 6380, tls: true, db: 2, username: 'limits', password: 'p@w' },
    masterKey: `k2:${KEY}`,
    masterKeyFile: undefined,
    masterKeysPrevious: [`k1:${OTHER}`, `k0:exec:${WRAPPED}`],
    keyCommands: {
      wrap: ['vault', 'write', '-field=ciphertext', 'transit/encrypt/strongroom', 'plaintext=-'],
      unwrap: ['sh', '-c', 'vault read | base64 -d'],
      timeout: 30,
      env: {}
    },
    rateLimits: { api: 0, oauth: 1, keyRotation: 2, billing: 1_000_000, longOperations: 7 },
    defaultPlan: 'team',
    invoices: {
      seller: { name: 'Größe & Söhne', address: '1 Harbour Road\nDublin\nIreland', tax_id: 'IE1234567FA' },
      note: 'Reverse charge\nVAT is due by the recipient',
      paymentDetails: 'IBAN IE29 AIBK 9311 5212 3456 78\nBIC AIBKIE2D',
      dueDays: 30
    },
    shutdownDelay: 5,
    bodyLimit: 512 * 1024,
    allowRevealingKeyProof: true,
    docsUi: false,
    console: false,
    logLevel: 'silent',
    logClientAddress: 'full',
    corsOrigins: ['https://app.example.com', 'http://localhost:3000'],
    outgoing: {
      allow: [{ host: 'git.example.com', bits: undefined, port: undefined }, { host: '10.0.0.0', bits: 8, port: 443 }],
      authorities: undefined
    },
    metricsToken: 'sixteen-visible!',
    traces: {
      endpoint: 'https://collector.example:4318/base',
      headers: { 'x-api-key': 'a,b', other: 'c' },
      serviceName: 'secrets',
      ratio: 0.25
    }
  })
  for (const [text, bytes] of [
    ['16384', 16384], ['16 KiB', 16384], ['64MiB', 67108864], ['2 MiB', 2097152], ['20000 B', 20000], ['1mib', 1048576]
  ] as const) {
    t.equal(loadConfig({ BODY_LIMIT: text }).bodyLimit, bytes, text)
  }
  for (const url of [
    'postgresql://u@h/d', 'postgres:///d?host=/run/postgresql', 'postgres://u:p%40ss@a:1,b:2/d',
    'postgres://u:p@[::1]:5432/d?sslmode=require'
  ]) {
    t.equal(loadConfig({ DATABASE_URL: url, MASTER_KEY_FILE: '/key' }).databaseUrl, url, url)
  }
  for (const [text, value] of [
    ['1', true], ['on', true], ['TRUE', true], ['0', false], ['off', false], ['false', false]
  ] as const) {
    t.equal(loadConfig({ ALLOW_REVEALING_KEY_PROOF: text }).allowRevealingKeyProof, value, text)
  }
  t.equal(loadConfig({ TRUST_PROXY: 'off' }).trustProxy, false)
  for (const [text, server] of [
    ['smtp://mail.example.com', { host: 'mail.example.com', port: 587, secure: false }],
    ['smtp://127.0.0.1:25/', { host: '127.0.0.1', port: 25, secure: false }],
    ['smtps://[::1]:2525', { host: '::1', port: 2525, secure: true }]
  ] as const) t.same(loadConfig({ SMTP_URL: text }).smtp, server, text)
  for (const [text, server] of [
    ['redis://cache', { host: 'cache', port: 6379, tls: false, db: 0 }],
    ['redis://:p%3Aw@[::1]:7000/', { host: '::1', port: 7000, tls: false, db: 0, password: 'p:w' }]
  ] as const) t.strictSame(loadConfig({ REDIS_URL: text }).redis, server, text)
  t.same(loadConfig({ MAIL_FROM: 'secrets@example.com' }).mailFrom, { name: '', address: 'secrets@example.com' })
})

t.test('a PUBLIC_URL of plain http beyond this machine is refused, unless the operator insists', async (t) => {
  for (const url of [
    'http://secrets.example.com', 'http://10.0.0.7:8080', 'http://localhost.example.com', 'http://[::2]',
    'http://0.0.0.0:8080', 'http://127.example.com'
  ]) {
    t.match(
      refusal(() => loadConfig({ PUBLIC_URL: url })), /^PUBLIC_URL is "http:[^\n]+ALLOW_INSECURE_PUBLIC_URL[^\n]+$/, url
    )
    t.match(refusal(() => loadConfig({ PUBLIC_URL: url, ALLOW_INSECURE_PUBLIC_URL: 'off' })), /^PUBLIC_URL is/, url)
    t.equal(loadConfig({ PUBLIC_URL: url, ALLOW_INSECURE_PUBLIC_URL: 'on' }).publicUrl, url)
  }
  for (const url of [
    'https://secrets.example.com', 'http://127.0.0.1:8080', 'http://127.1.2.3', 'http://localhost:3000',
    'http://[::1]:8080'
  ]) {
    t.equal(loadConfig({ PUBLIC_URL: url }).publicUrl, url)
  }
})

t.test('a wrong value is one line that names the variable, what was given and what is allowed', async (t) => {
  const wrong: Record<string, string[]> = {
    HOST: ['a b', 'http://localhost', '[::1]', 'host/path', ' '],
    PORT: ['-1', '65536', '80.5', '8e1', '0x50', ' 80', 'http', '99999999999999999999'],
    DATABASE_POOL: ['1', '101', '0', 'ten', '-5', '1e1'],
    DATABASE_WAIT: ['-1', '3601', '60s'],
    DATA_DIR: [' '],
    PUBLIC_URL: [
      'example.com', 'ftp://example.com', 'https://example.com/', 'https://example.com/a/', 'https://example.com?a=b', 'https://example.com#a',
      'https://example.com?', 'https://EXAMPLE.com', 'https://example.com:443', 'https://user:pass@example.com', 'https://', 'javascript:alert(1)',
      'https://example.com\nX-Header: 1'
    ],
    TRUST_PROXY: [
      'true', 'on', '1', '*', '10.0.0.0/33', '10.0.0.0/0', '::/0', '10.0.0', 'proxy.example.com', '10.0.0.1,',
      'fd00::/129', 'loopback,true', 'off,10.0.0.1', 'fe80::1%eth0'
    ],
    SMTP_URL: [
      'mail.example.com', 'mail.example.com:587', 'http://mail.example.com', 'smtp:mail.example.com', 'smtp://', 'smtp://mail.example.com/path', 'smtp://mail.example.com:0',
      'smtp://mail.example.com:65536', 'smtp://user@mail.example.com', 'smtp://:password@mail.example.com', 'smtp://u:%@mail.example.com', 'smtp://u:%00@mail.example.com',
      'smtps://mail.example.com?tls.rejectUnauthorized=false', 'smtp://mail.example.com#a', 'smtp://a b@mail.example.com', 'smtp://mail.example.com\nsmtp://other'
    ],
    MAIL_FROM: [
      'Strongroom', '@example.com', 'a@', 'a b@example.com', 'a@b@c', 'Strongroom <a@example.com', 'Strongroom a@example.com>', 'Strongroom <a@example.com>, <b@example.com>',
      'a@example.com, b@example.com', 'A\r\nBcc: b@example.com <a@example.com>', 'a@example.com\n', '"A" <a@example.com>', `${'x'.repeat(101)} <a@example.com>`
    ],
    RATE_LIMIT_API: ['-1', '1000001', 'off', '1.5'],
    RATE_LIMIT_OAUTH: ['x'],
    RATE_LIMIT_KEY_ROTATION: ['x'],
    MASTER_KEY_COMMAND_TIMEOUT: ['0', '121', '10s'],
    RATE_LIMIT_BILLING: ['x'],
    RATE_LIMIT_LONG_OPERATIONS: ['x'],
    DEFAULT_PLAN: ['Free', 'gold', 'free '],
    INVOICE_SELLER_NAME: [' ', 'x'.repeat(256), 'a\nb'],
    INVOICE_SELLER_ADDRESS: ['x'.repeat(1001), 'a\tb'],
    INVOICE_SELLER_TAX_ID: ['x'.repeat(65)],
    INVOICE_NOTE: ['x'.repeat(1001), 'a\u0007'],
    INVOICE_PAYMENT_DETAILS: ['x'.repeat(1001)],
    INVOICE_DUE_DAYS: ['-1', '366', '14 days'],
    SHUTDOWN_DELAY: ['-1', '301', '5s'],
    BODY_LIMIT: ['16383', '65MiB', '2MB', '2  MiB', '-1', '1.5MiB', 'MiB', '999999999999MiB'],
    ALLOW_REVEALING_KEY_PROOF: ['yes', '2', 'no'],
    DOCS_UI: ['yes', 'enabled'],
    CONSOLE: ['yes', 'enabled'],
    LOG_LEVEL: ['verbose', 'INFO', '30'],
    LOG_CLIENT_ADDRESS: ['on', 'NETWORK', '/24'],
    CORS_ORIGINS: [
      '*', 'null', 'https://*.example.com', 'https://example.com/', 'https://example.com,', 'example.com',
      'https://example.com,*', 'https://u:p@example.com'
    ],
    OUTGOING_ALLOW: [
      '*', '*.example.com', 'https://git.example.com', 'git.example.com/keys', 'git.example.com:0', 'git.example.com:65536', 'git.example.com:',
      '10.0.0.0/0', '10.0.0.0/33', '::/0', 'fd00::/129', '10.0.0.0/8,', ',', '[git.example.com]', '[fd00::/8', 'fe80::1%eth0', 'git.example.com/8',
      'a b', 'git.exämple.com', '[10.0.0.0/8]:x'
    ],
    OUTGOING_CA: ['/nowhere', '.', 'package.json'],
    WORKERS: ['2', '0', '65', 'auto']
  }
  for (const [name, values] of Object.entries(wrong)) {
    for (const value of values) {
      const message = refusal(() => loadConfig({ [name]: value }))
      t.ok(
        message?.startsWith(`${name} `) && message.includes('allowed'), `${name}=${JSON.stringify(value)}: ${message}`
      )
      t.notMatch(message, /[\n\r\u2028]/, 'one line')
    }
  }
  t.equal(
    refusal(() => loadConfig({ PORT: '70000' })),
    'PORT is "70000"; allowed: a whole number from 0 to 65535 (0 picks a free port)'
  )
  t.ok((refusal(() => loadConfig({ LOG_LEVEL: 'x'.repeat(100_000) })) ?? '').length < 400, 'a long value is cut')
})

t.test('OUTGOING_CA is a file with certificates', async (t) => {
  const path = join(scratchDirectory(t), 'authorities.pem')
  const certificates = rootCertificates.slice(0, 2).join('\n')
  writeFileSync(path, certificates)
  t.equal(loadConfig({ OUTGOING_CA: path }).outgoing.authorities, certificates)
  for (const text of ['', 'x', '-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n']) {
    writeFileSync(path, text)
    t.match(refusal(() => loadConfig({ OUTGOING_CA: path })), /^OUTGOING_CA is .*; allowed: the path of a file with certificates in PEM$/)
  }
})

t.test('OUTGOING_ALLOW has names, addresses and networks, each with or without a port', async (t) => {
  const allow = (text: string) => loadConfig({ OUTGOING_ALLOW: text }).outgoing.allow
    .map(({ host, bits, port }) => [host, bits, port])
  t.same(allow('Git.Example.com, git:8443 ,10.0.0.0/8,10.1.2.3:443,10.0.0.0/8:8443'), [
    ['git.example.com', undefined, undefined], ['git', undefined, 8443], ['10.0.0.0', 8, undefined], ['10.1.2.3', 32, 443], ['10.0.0.0', 8, 8443]
  ])
  t.same(allow('::1,fd00::/8,[::1]:443,[fd00::/8]:8443,[fd00::/8],[10.0.0.0/8]:1'), [
    ['::1', 128, undefined], ['fd00::', 8, undefined], ['::1', 128, 443], ['fd00::', 8, 8443], ['fd00::', 8, undefined], ['10.0.0.0', 8, 1]
  ])
})

t.test('a message never holds a secret', async (t) => {
  const secret = 'hunter2hunter2'
  const wrong: Record<string, string[]> = {
    MASTER_KEY: [
      secret, KEY, `k1:${KEY}x`, `k1:${secret}`, `k1:${KEY.slice(0, -1)}`, `k1:${Buffer.alloc(31, 7).toString('base64')}`, `k 1:${KEY}`, `:${KEY}`, `k1:${KEY}\n`,
      `${'k'.repeat(33)}:${KEY}`, `k1:${'A'.repeat(42)}B=`, `k1:exec:${KEY}x`, 'k1:exec:', `k1:kms:${KEY}`,
      `k1:exec:exec:${KEY}`, `k1:exec:${Buffer.alloc(3001, secret).toString('base64')}`
    ],
    MASTER_KEYS_PREVIOUS: [secret, KEY, `k1:${KEY},`, `k1:${KEY},${secret}`, `k1:${KEY},k1:${OTHER}`],
    MASTER_KEY_UNWRAP_COMMAND: [
      `sh -c "echo ${secret}"`, `echo ${secret} | base64 -d`, `echo $${secret}`, `["echo","${secret}"`, `["echo",["${secret}"]]`,
      `["","${secret}"]`, '[]', ' ', '{}', `echo ${secret.repeat(300)}`, `echo ${`${secret} `.repeat(64)}`, `["echo","${secret}\\u0000"]`
    ],
    MASTER_KEY_WRAP_COMMAND: [`echo ${secret};`],
    DATABASE_URL: [
      `mysql://app:${secret}@db/x`, `app:${secret}@db`, secret, `postgres://app:${secret}@db:port/x`, `postgres://app:${secret}#@db/x`, `postgres://app:${secret}%@db/x`,
      `postgres://app:${secret} @db/x`, `postgres://${secret}`.replace('//', '/')
    ],
    SMTP_URL: [
      `smtp://app:${secret}@mail:port`, `smtp://app:${secret}@mail/path`, `smtp://app:${secret}#@mail`, `smtp://app:${secret}?@mail`, `smtp://app:${secret}%@mail`,
      `smpt://app:${secret}@mail`, `app:${secret}@mail`, `smtp:/${secret}@mail`
    ],
    REDIS_URL: [
      `redis://:${secret}@cache:port`, `redis://:${secret}@cache/name`, `redis://:${secret}@cache?db=1`,
      `rediss://:${secret}%@cache`, `redis:/${secret}@cache`, `http://:${secret}@cache`
    ],
    METRICS_TOKEN: [secret, `${secret} ${secret}`, `${secret}${secret}ü`, secret.repeat(50)],
    OTEL_EXPORTER_OTLP_ENDPOINT: [
      `http://app:${secret}@collector`, `http://collector/?key=${secret}`, `http:/${secret}/`
    ],
    OTEL_EXPORTER_OTLP_HEADERS: [secret, `x-api-key:${secret}`, `x=${secret}%`, `x=${secret}%0a`, `x=${secret},`],
    PUBLIC_URL: [`https://app:${secret}@example.com`, `https://app:a@${secret}@example.com`],
    CORS_ORIGINS: [`https://app:${secret}@example.com`]
  }
  for (const [name, values] of Object.entries(wrong)) {
    for (const value of values) {
      const message = refusal(() => loadConfig({ [name]: value }))
      t.ok(message?.startsWith(name), `${name}: ${message}`)
      for (const part of [secret, KEY, KEY.slice(0, 20), OTHER.slice(0, 20)]) {
        t.notOk(message?.includes(part), 'nothing of the secret')
      }
      t.notMatch(message, /[\n\r]/, 'one line')
    }
  }
})

t.test('CR-10 CR-11: the master key has at most one source, and exactly one with a DATABASE_URL', async (t) => {
  t.match(refusal(() =>
    loadConfig({ MASTER_KEY: `k1:${KEY}`, MASTER_KEY_FILE: '/key' })), /^MASTER_KEY and MASTER_KEY_FILE are both set/)
  const message = refusal(() => loadConfig({ DATABASE_URL: URL_WITH_PASSWORD }))
  t.match(message, /^MASTER_KEY .*openssl rand -base64 32/)
  t.notMatch(message, /[\n\r]|hunter2/)
  t.match(refusal(() => loadConfig({ MASTER_KEY: `k1:${KEY}`, MASTER_KEYS_PREVIOUS: `k1:${OTHER}` })), /"k1"/)
  t.equal(loadConfig({ DATABASE_URL: URL_WITH_PASSWORD, MASTER_KEY: `k1:${KEY}` }).masterKey, `k1:${KEY}`)
})

t.test('CR-10: a key file that another user could read or exchange is refused', async (t) => {
  const dir = scratchDirectory(t)
  for (const [name, content] of Object.entries({ key: `k1:${KEY}\n`, wrong: 'hunter2hunter2', empty: '' })) {
    writeFileSync(join(dir, name), content)
  }
  const path = join(dir, 'key')
  for (const mode of [0o400, 0o600]) {
    chmodSync(path, mode)
    t.equal(readKeyFile(path), `k1:${KEY}`)
  }
  symlinkSync('key', join(dir, 'link'))
  t.equal(readKeyFile(join(dir, 'link')), `k1:${KEY}`, 'secret mounts are links')
  for (const mode of [0o640, 0o604, 0o644, 0o610, 0o660, 0o602]) {
    chmodSync(path, mode)
    const message = refusal(() => readKeyFile(path))
    t.match(message, new RegExp(`^MASTER_KEY_FILE: .* has mode 0${mode.toString(8)}; mode 0400 or 0600 is allowed$`))
    t.notOk(message?.includes(KEY))
  }
  if (process.getuid?.() === 0) {
    chmodSync(path, 0o600)
    chownSync(path, 65534, 65534)
    t.match(
      refusal(() => readKeyFile(path)),
      /^MASTER_KEY_FILE: .* belongs to user 65534; a file of user 0 or of root is allowed$/
    )
  }
  mkdirSync(join(dir, 'directory'), { mode: 0o700 })
  t.match(refusal(() => readKeyFile(join(dir, 'directory'))), /is not a regular file/)
  t.match(refusal(() => readKeyFile('/dev/null')), /is not a regular file/)
  t.match(refusal(() => readKeyFile(join(dir, 'missing'))), /does not exist. Correct the path/)
  writeFileSync(join(dir, 'large'), 'x'.repeat(5000), { mode: 0o600 })
  t.match(refusal(() => readKeyFile(join(dir, 'large'))), /has 5000 bytes/)
  for (const name of ['wrong', 'empty']) {
    chmodSync(join(dir, name), 0o600)
    const message = refusal(() => readKeyFile(join(dir, name), 'KEY_FILE'))
    t.match(message, /^KEY_FILE: .* does not hold a master key/)
    t.notMatch(message, /hunter2|\n/)
  }
})
