// runs: one database
import { spawnSync } from 'node:child_process'
import { readdirSync, readFileSync } from 'node:fs'
import t from 'tap'
import { parse, parseAllDocuments } from 'yaml'
import { loadConfig } from '../../src/config.ts'
import { startIsolatedApp } from '../helpers/app.ts'
import { readDoc, variablesOfService } from '../helpers/docs.ts'
import { namesOf, OF_WORKERS } from '../helpers/metrics.ts'
import { run } from '../helpers/process.ts'

// Files that an operator copies must not name anything that does not exist.

const METRICS_TOKEN = 'a-token-for-the-metrics-alone'
const read = (path: string) => readFileSync(path, 'utf8')

// This file has its own database, because it shows a whole deployment, including its shutdown.
const service = await startIsolatedApp(t, {
  METRICS_TOKEN, OTEL_EXPORTER_OTLP_ENDPOINT: 'http://127.0.0.1:9', REDIS_URL: 'redis://127.0.0.1:9', LOG_LEVEL: 'silent'
})
const { text } = await service.inject({
  method: 'GET', url: '/metrics', headers: { authorization: `Bearer ${METRICS_TOKEN}` }
})
const metrics = new Set([...namesOf(text), ...OF_WORKERS])

/** The metrics of the service or of its processes in a text. A histogram counts under its own name. */
const named = (text: string) => [...new Set([...text.matchAll(/\b(?:strongroom|process|nodejs)_[a-z_]+\b/g)].map(([name]) =>
  metrics.has(name) ? name : name.replace(/_(?:bucket|sum|count)$/, '')))]

const variables = variablesOfService()

const rules = (parse(read('examples/prometheus/alerts.yaml')) as {
  groups: { rules: { alert: string, expr: string, labels: { severity: string }, annotations: { summary: string } }[] }[]
}).groups.flatMap(({ rules }) => rules)

t.test('the page of metrics names every metric, and no other', async (t) => {
  t.ok(metrics.size > 30)
  const inTable = readDoc('docs/operations/metrics.md').table('| Metric | What it says |').flatMap((row) => named(row.join(' ')))
  t.same(inTable.sort(), [...metrics].sort())
})

t.test('alert rules and the dashboard are about metrics that there are', async (t) => {
  t.ok(rules.length > 10)
  for (const { alert, expr, labels, annotations } of rules) {
    t.ok(['critical', 'warning', 'info'].includes(labels.severity), alert)
    t.ok(annotations.summary)
    const names = named(expr)
    t.ok(names.length > 0 || /\bup\{/.test(expr), expr)
    t.same(names.filter((name) => !metrics.has(name)), [], alert)
  }
  const { panels, templating } = JSON.parse(read('examples/grafana/strongroom.json')) as {
    panels: { id: number, title: string, targets: { expr: string }[], gridPos: Record<'x' | 'y' | 'w' | 'h', number> }[]
    templating: { list: { name: string, query: string }[] }
  }
  t.equal(new Set(panels.map(({ id }) => id)).size, panels.length, 'ids are of one panel each')
  for (const { title, targets, gridPos: { x, w } } of panels) {
    t.ok(x + w <= 24, `${title} fits`)
    for (const { expr } of targets) t.same(named(expr).filter((name) => !metrics.has(name)), [], title)
  }
  t.same(named(JSON.stringify(templating)).filter((name) => !metrics.has(name)), [])
  const shown = named(JSON.stringify(panels))
  // Metrics that the dashboard shows indirectly: totals with a gauge on another panel, and the start time of a process.
  const left = ['strongroom_limits_without_redis_total', 'strongroom_limits_without_supervisor_total',
    'process_start_time_seconds', 'nodejs_memory_bytes']
  t.same([...metrics].filter((name) => !shown.includes(name)).sort(), left.sort(), 'everything else is on the dashboard')
})

interface AlertCase { alertname: string, exp_alerts: object[] }

t.test('each alert is shown to fire, and not to fire', async (t) => {
  const { tests } = parse(read('examples/prometheus/alerts.test.yaml')) as { tests: { alert_rule_test: AlertCase[] }[] }
  const cases = tests.flatMap(({ alert_rule_test: cases }) => cases)
  const shown = (fires: boolean) => new Set(
    cases.filter(({ exp_alerts: alerts }) => (alerts.length > 0) === fires).map(({ alertname }) => alertname)
  )
  const names = rules.map(({ alert }) => alert).sort()
  t.same([...shown(true)].sort(), names)
  t.same([...shown(false)].sort(), names)
})

t.test('and Prometheus says so', {
  skip: spawnSync('promtool', ['--version']).error !== undefined && 'promtool is not installed (Debian: prometheus)'
}, async (t) => {
  const { code, stdout, stderr } = await run('promtool', ['test', 'rules', 'examples/prometheus/alerts.test.yaml'])
  t.equal(code, 0, stdout + stderr)
})

t.test('the alert about memory comes before an instance is killed for it', async (t) => {
  t.match(read('examples/kubernetes/strongroom.yaml'), /limits: \{ memory: 1Gi \}/)
  t.match(rules.find(({ alert }) => alert === 'StrongroomMemory')!.expr, /> 0\.75 \* 1024 \^ 3$/)
})

t.test('for each alert it is said what to do when it fires, and for no other', async (t) => {
  const rows = readDoc('docs/operations/alerts.md').table('| Alert | What to do when it fires |')
  t.same(rows.map(([name]) => name), rules.map(({ alert }) => alert))
  t.ok(rows.every(([, what = '']) => what.length > 50))
})

t.test('the manifests for Kubernetes are whole: what they name is there, and nothing runs as root', async (t) => {
  const documents = parseAllDocuments(read('examples/kubernetes/strongroom.yaml'))
  t.same(documents.flatMap(({ errors }) => errors), [])
  const all = documents.map((one) => one.toJS() as any)
  const of = (kind: string) => all.filter((one) => one.kind === kind)
  t.ok(all.every(({ kind, metadata }) => kind === 'Namespace' || metadata.namespace === 'strongroom'))
  t.equal(of('Secret').length, 0, 'no secret is in a file')
  const [{ spec: { replicas, template, selector } }] = of('Deployment')
  t.equal(replicas, 2)
  const { labels } = template.metadata
  for (const matched of [
    selector.matchLabels, ...of('Service').map(({ spec }) => spec.selector),
    of('PodDisruptionBudget')[0].spec.selector.matchLabels, of('NetworkPolicy')[0].spec.podSelector.matchLabels
  ]) {
    t.same(matched, labels)
  }
  t.match(template.spec, { automountServiceAccountToken: false, securityContext: { runAsNonRoot: true } })
  const [container] = template.spec.containers
  t.match(container.securityContext, {
    allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: { drop: ['ALL'] }
  })
  const namesIn = (list: { name: string }[]) => list.map(({ name }) => name).sort()
  t.same(namesIn(container.volumeMounts), namesIn(template.spec.volumes))
  t.equal(container.livenessProbe.httpGet.path, '/healthz')
  t.equal(container.readinessProbe.httpGet.path, '/readyz')
  for (const url of ['/healthz', '/readyz']) t.equal((await service.inject({ method: 'GET', url })).status, 200)
  const [{ data }] = of('ConfigMap')
  t.same([...Object.keys(data), ...namesIn(container.env)].filter((name) => !variables.has(name)), [])
  const secrets = { MASTER_KEY: `k1:${'A'.repeat(43)}=`, DATABASE_URL: 'postgres://a@b/c' }
  t.throws(() => loadConfig({ ...data, ...secrets }), /^TRUST_PROXY is /, 'the proxy address is not known here')
  t.equal(loadConfig({ ...data, ...secrets, TRUST_PROXY: '10.244.0.0/16' }).workers, 1)
  t.ok(template.spec.terminationGracePeriodSeconds > Number(data.SHUTDOWN_DELAY) + 10, 'nothing is killed that ends by itself')
  const install = readDoc('docs/operations/install.md').text
  t.notMatch(install, /--from-literal/, 'every process on the machine can read arguments')
  // The page must create each secret, unless the secret is optional.
  for (const { name, valueFrom: { secretKeyRef: { key, optional } } } of container.env) {
    t.ok(optional || new RegExp(`^${key}=`, 'm').test(install), name)
  }
})

t.test('compose.yaml has two instances, which only the proxy can reach', async (t) => {
  const { services, networks, configs } = parse(read('compose.yaml')) as any
  const { strongroom, proxy, postgres, redis } = services
  t.equal(strongroom.deploy.replicas, 2)
  t.same([strongroom.ports, postgres.ports, redis.ports], [undefined, undefined, undefined])
  t.same(proxy.ports, ['127.0.0.1:8080:8080'], 'nor from another machine')
  t.same(Object.keys(strongroom.environment).filter((name) => !variables.has(name)), [])
  const required = /\$\{(\w+):\?/g
  t.same(
    [strongroom.environment.MASTER_KEY, strongroom.environment.DATABASE_URL, postgres.environment.POSTGRES_PASSWORD]
      .flatMap((value: string) => [...value.matchAll(required)].map(([, name]) => name)),
    ['MASTER_KEY', 'POSTGRES_PASSWORD', 'POSTGRES_PASSWORD'], 'no secret has a default'
  )
  const shared = (one: any, other: any) => one.networks.filter((name: string) => other.networks.includes(name))
  t.same(shared(strongroom, proxy), ['proxy'], 'what the proxy sends comes from one network')
  t.same([shared(postgres, proxy), shared(redis, proxy), shared(postgres, redis)], [[], [], []])
  for (const name of ['proxy', ...postgres.networks, ...redis.networks]) t.equal(networks[name].internal, true, name)
  const [{ subnet }] = networks.proxy.ipam.config
  t.ok(strongroom.environment.TRUST_PROXY.endsWith(`:-${subnet}}`), 'the proxy alone says who the client is')
  t.match(read(configs.proxy.file), /option forwardfor[^]*GET uri \/readyz[^]* strongroom:8080\n/)
  for (const { security_opt: options } of Object.values<any>(services)) t.ok(options.includes('no-new-privileges:true'))
  t.same([strongroom.read_only, strongroom.cap_drop], [true, ['ALL']])
  t.same(loadConfig({ TRUST_PROXY: subnet }).trustProxy, [subnet])
  t.ok(parseInt(strongroom.stop_grace_period, 10) > strongroom.environment.SHUTDOWN_DELAY + 10)
})

t.test('the example for Citus has three nodes, which take no connection without TLS and a password', async (t) => {
  const folder = 'examples/citus'
  const { services, networks, volumes, configs } = parse(read(`${folder}/compose.yaml`), { merge: true }) as any
  const nodes = ['coordinator', 'worker-1', 'worker-2']
  const instances = ['strongroom-1', 'strongroom-2']
  t.same(Object.keys(services).sort(), ['certificates', 'cluster', ...nodes, ...instances].sort())
  t.same(services.certificates.entrypoint.slice(-3), nodes)
  for (const name of nodes) {
    const { image, networks, configs, ports, volumes } = services[name]
    t.same([image, networks, ports], [services.certificates.image, ['database'], undefined], name)
    t.same(configs.map(({ source }: { source: string }) => source), ['postgresql', 'hba', 'node'])
    t.same(volumes, [`${name}:/var/lib/postgresql/data`, `${name}-tls:/tls:ro`])
    t.match(read(`${folder}/cluster.sql`), `'${name}', 5432`)
  }
  t.equal(networks.database.internal, true)
  for (const { file } of Object.values<any>(configs)) t.ok(read(`${folder}/${file}`), file)
  const used = Object.values<any>(services).flatMap(({ volumes = [] }) => volumes.map((one: string) => one.split(':')[0]))
  t.same([...new Set(used)].sort(), Object.keys(volumes).sort())
  t.same(read(`${folder}/pg_hba.conf`).match(/^(?!#).+$/gm), ['local   all all     peer', 'hostssl all all all scram-sha-256'])
  t.match(read(`${folder}/postgresql.conf`), /^citus\.node_conninfo = 'sslmode=verify-full sslrootcert=\/tls\/ca\.crt'$/m)
  for (const name of instances) {
    const { environment, read_only, cap_drop, ports } = services[name]
    t.match(environment.DATABASE_URL, /\?sslmode=verify-full&sslrootcert=\/tls\/ca\.crt$/)
    t.same([read_only, cap_drop, ports[0].split(':')[0]], [true, ['ALL'], '127.0.0.1'])
    t.same(Object.keys(environment).filter((name) => !variables.has(name)), [])
  }
})

t.test('the configuration of Prometheus has the rules that there are', async (t) => {
  const { rule_files: files } = parse(read('examples/prometheus/prometheus.yaml')) as { rule_files: string[] }
  t.ok(files.every((file) => readdirSync('examples/prometheus').includes(file)))
})
