// Asks TARGET: a good and a bad answer, a pause in which both counts leave for the first time, and then what TARGET
// gives, until it says that it is enough.
import http from 'k6/http'
import exec from 'k6/execution'
import { sleep } from 'k6'

export const options = { vus: 1, iterations: 1000, systemTags: ['status'], tags: { router_id: __ENV.ROUTER } }

export default function () {
  if (exec.scenario.iterationInTest === 0) {
    http.get(`${__ENV.TARGET}/good`)
    http.get(`${__ENV.TARGET}/bad`)
    sleep(1)
  }
  const answer = http.get(__ENV.TARGET)
  if (answer.status === 410) {
    sleep(1) // an end takes along what did not leave
    exec.test.abort('enough')
  }
  sleep(0.05)
}
