import { Type } from '@sinclair/typebox'
import { Answer, Example } from './shapes.ts'

/** The response to usage telemetry of command-line tools. The service discards the telemetry. */
export const TelemetryAnswer = Answer('TelemetryAnswer', { success: Example(Type.Boolean(), true) })
