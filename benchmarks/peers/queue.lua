-- queue: a delay queue in Tarantool for the benchmarks, as one would write it: put, take (waits;
-- the task is the taker's for a time), ack; what a lost connection held, or held too long, is ready
-- again. Settings come by the environment.
local fiber = require('fiber')

box.cfg({
  work_dir = os.getenv('BENCH_FOLDER'),
  wal_mode = os.getenv('BENCH_WAL'),
  memtx_memory = 4 * 1024 * 1024 * 1024,
  checkpoint_interval = 0,
  log_level = 3,
})
box.schema.user.grant('guest', 'super', nil, nil, { if_not_exists = true })
local LEASE_US = 600 * 1000000

-- A task: id (16 characters), state (r ready, d delayed, t taken), at (µs: due, or when its lease
-- ends), due (µs), payload.
local tasks = box.schema.space.create('tasks')
tasks:create_index('id', { parts = { { 1, 'string' } } })
local order =
  tasks:create_index('order', { parts = { { 2, 'string' }, { 3, 'unsigned' }, { 1, 'string' } } })
-- The same record without a queue, for its size.
local records = box.schema.space.create('records')
records:create_index('id', { parts = { { 1, 'string' } } })

local ready, earlier = fiber.cond(), fiber.cond()
-- By session: set of ids, waiting takes, whether it has ended.
local held, waiting, gone = {}, {}, {}
local last = 0
local idle = false -- whether the watching fiber has no time to look at

local function first(state)
  local task = order:min({ state })
  if task and task[2] == state then return task end
end

local function make_ready(task)
  tasks:update(task[1], { { '=', 2, 'r' }, { '=', 3, task[4] } })
  ready:signal()
end

function put(payload, delay_ms)
  last = last + 1
  local id, due = string.format('%016x', last), fiber.time64() + delay_ms * 1000
  if delay_ms == 0 then
    tasks:insert({ id, 'r', due, due, payload })
    ready:signal()
  else
    tasks:insert({ id, 'd', due, due, payload })
    local head = first('d')
    if head and head[1] == id then earlier:signal() end
  end
  return id
end

function take(wait_s)
  local till, session = fiber.time() + wait_s, box.session.id()
  while not gone[session] do
    local task = first('r')
    if task then
      held[session] = held[session] or {}
      held[session][task[1]] = true
      tasks:update(task[1], { { '=', 2, 't' }, { '=', 3, fiber.time64() + LEASE_US } })
      if idle then earlier:signal() end
      return task[1], task[5]
    end
    local left = till - fiber.time()
    if left <= 0 then return nil end
    waiting[session] = (waiting[session] or 0) + 1
    ready:wait(left)
    waiting[session] = waiting[session] > 1 and waiting[session] - 1 or nil
  end
  ready:signal() -- the wake-up was for somebody who is there
end

function ack(id)
  local mine = held[box.session.id()]
  if not mine or not mine[id] then return false end
  mine[id] = nil
  tasks:delete(id)
  return true
end

box.session.on_disconnect(function()
  local session = box.session.id()
  local mine = held[session]
  held[session] = nil
  gone[session] = true -- the session itself lives on while a take of it waits
  if waiting[session] then ready:broadcast() end
  for id in pairs(mine or {}) do
    make_ready(tasks:get(id))
  end
end)

-- What is due, and what was held too long.
fiber.create(function()
  while true do
    local soonest
    for _, state in ipairs({ 'd', 't' }) do
      local task = first(state)
      if task and (not soonest or task[3] < soonest[3]) then soonest = task end
    end
    local left_us = soonest and tonumber(soonest[3]) - tonumber(fiber.time64())
    idle = not soonest
    if idle then
      earlier:wait()
    elseif left_us > 0 then
      earlier:wait(left_us / 1e6)
    else
      for _, mine in pairs(held) do
        mine[soonest[1]] = nil
      end
      make_ready(soonest)
    end
  end
end)

-- `count` tasks (or plain records) of `size` bytes, due in `delay_ms`: for measuring memory.
function fill(count, size, delay_ms, plain)
  local payload = string.rep('x', size)
  for number = 1, count do
    if plain then
      records:insert({ string.format('%016x', number), payload })
    else
      put(payload, delay_ms)
    end
    if number % 1000 == 0 then fiber.yield() end
  end
end

-- Bytes of tuples, and of the indexes.
function memory()
  local indexes = 0
  for _, space in ipairs({ tasks, records }) do
    for number = 0, #space.index do
      indexes = indexes + space.index[number]:bsize()
    end
  end
  return box.slab.info().items_used, indexes
end

box.cfg({ listen = os.getenv('BENCH_LISTEN') }) -- last: who is let in finds everything
