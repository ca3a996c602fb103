"""Chat templates in the styles of published families, and the conversations that they are rendered with."""

from typing import Any

ASKED: list[dict[str, Any]] = [{"role": "user", "content": "Who is it? <b>'她'</b> & \"I\""}]
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": " Be brief. \n"},
    {"role": "user", "content": "  One?\n"},
    {"role": "assistant", "content": "1 < 2"},
    {"role": "user", "content": "两个？"},
]
THOUGHT: list[dict[str, Any]] = [
    {"role": "user", "content": "Why?"},
    {"role": "assistant", "content": "<think>\nhm\n</think>\n\nBecause.", "name": None},
    {"role": "user", "content": "And why?"},
    {"role": "assistant", "content": "So.", "reasoning": "well, 好"},
    {"role": "user", "content": "Oh?"},
]
CALLED: list[dict[str, Any]] = [
    {"role": "user", "content": "Weather in Zürich?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "type": "function",
                "id": "c1",
                "function": {"name": "weather", "arguments": {"at": 7, "a": "ü"}},
            },
            {"type": "function", "id": "c2", "function": {"name": "clock", "arguments": {}}},
        ],
    },
    {"role": "tool", "name": "weather", "tool_call_id": "c1", "content": "4 °C, it's <cold>"},
    {"role": "tool", "name": "clock", "tool_call_id": "c2", "content": "07:00"},
]
PARTS: list[dict[str, Any]] = [
    {
        "role": "user",
        "content": [{"type": "text", "text": "What is"}, {"type": "image"}, {"text": "this?"}],
    },
    {"role": "assistant", "content": "A cat"},
    {"role": "user", "content": [{"type": "text", "text": "Sure?"}]},
]
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "The weather's < of a place, 天气",
            "parameters": {
                "type": "object",
                "properties": {"place": {"type": "string", "enum": ["Zürich", "Bern"]}, "at": {"type": "integer"}},
                "required": ["place"],
            },
        },
    },
    {"type": "function", "function": {"name": "clock", "description": "Now", "parameters": {"properties": {}}}},
]
DOCUMENTS: list[dict[str, Any]] = [
    {"title": "Cats", "text": "Cats sleep & purr."},
    {"title": "狗", "text": "Dogs don't."},
]

CHATML = """\
{% for message in messages %}
    {% if loop.first and message['role'] != 'system' %}
        {{ '<|im_start|>system\\nYou are of help.<|im_end|>\\n' }}
    {% endif %}
    {{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n' }}
{% endfor %}
{% if add_generation_prompt %}
    {{ '<|im_start|>assistant\\n' }}
{% endif %}
"""
LLAMA_2 = """\
{%- if messages[0]['role'] == 'system' -%}
{%- set rest = messages[1:] %}{% set told = '<<SYS>>\\n' + messages[0]['content'].strip() + '\\n<</SYS>>\\n\\n' -%}
{%- else -%}
{%- set rest = messages %}{% set told = '' -%}
{%- endif -%}
{%- for m in rest -%}
{%- if (m.role == 'user') != (loop.index0 % 2 == 0) -%}{{ raise_exception('they take turns') }}{%- endif -%}
{%- if m.role == 'user' -%}
{{- bos_token + '[INST] ' + (told if loop.first else '') + m.content | trim + ' [/INST]' -}}
{%- else -%}
{{- ' ' + m.content | trim + ' ' + eos_token -}}
{%- endif -%}
{%- endfor -%}
"""
LLAMA_3 = """\
{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- else %}
        {%- set date_string = "26 Jul 2024" %}
    {%- endif %}
{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}{{- "Environment: ipython\\n" }}{%- endif %}
{{- "Today: " + date_string + "\\n\\n" }}
{%- if tools is not none %}
    {%- for t in tools %}
        {{- t | tojson(indent=4) }}
        {{- "\\n\\n" }}
    {%- endfor %}
{%- endif %}
{{- "<|eot_id|>" }}
{%- for message in messages if message.content %}
    {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\\n\\n' + message.content | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""
MISTRAL = """\
{%- set ns = namespace(index=0, seen=false) %}
{%- set users = messages | selectattr("role", "equalto", "user") | list %}
{{- bos_token }}
{%- for message in messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and (message == users[-1]) %}
            {{- "[AVAILABLE_TOOLS] [" }}
            {%- for tool in tools %}
                {{- '{"type": "function", "function": {' }}
                {%- for key, val in tool.function.items() if key != "return" %}
                    {%- if val is string %}
                        {{- '"' + key + '": "' + val + '"' }}
                    {%- else %}
                        {{- '"' + key + '": ' + val | tojson }}
                    {%- endif %}
                    {%- if not loop.last %}{{- ", " }}{%- endif %}
                {%- endfor %}
                {{- "}}" }}{{- ", " if not loop.last else "]" }}
            {%- endfor %}
            {{- "[/AVAILABLE_TOOLS]" }}
        {%- endif %}
        {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- set ns.index = ns.index + 1 %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- "[TOOL_CALLS] [" }}
        {%- for call in message.tool_calls %}
            {%- set out = call.function | tojson %}
            {{- out[:-1] + ', "id": "' + call.id + '"}' }}{{- ", " if not loop.last else "]" + eos_token }}
        {%- endfor %}
    {%- elif message["role"] == "tool" %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content | string + ', "call_id": "' + message.tool_call_id + '"}' }}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"] | trim + eos_token }}
    {%- endif %}
{%- endfor %}
{{- ns.index }}
"""
GEMMA = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}\
{% for message in messages %}{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}\
{% set role = message['role'] %}{% endif %}{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + \
'<end_of_turn>\\n' }}{% endfor %}{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}"""
PHI = """\
{% for message in messages %}{% if message['role'] in ['system', 'user'] %}
{{ '<|' ~ message['role'] ~ '|>' }}
{{ message['content'] ~ '<|end|>' }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\\n' ~ message['content'] ~ '<|end|>\\n' }}
{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}
unknown {{ unk_token }}, padding {{ pad_token }}, none {{ mask_token }}."""
ZEPHYR = """\
{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>
' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>
'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""
QWEN_2_5 = """\
{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] }}{%- endif %}
    {{- "\\n\\n# Tools\\n\\n<tools>" }}
    {%- for tool in tools %}
        {{- "\\n" }}
        {{- tool | tojson }}
    {%- endfor %}
    {{- "\\n</tools>\\n\\n{\\"name\\": <function-name>}<|im_end|>\\n" }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- elif message.role == "assistant" %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}{{- '\\n' + message.content }}{%- endif %}
        {%- for tool_call in message.tool_calls %}
            {%- if tool_call.function is defined %}{%- set tool_call = tool_call.function %}{%- endif %}
            {{- '\\n<tool_call>\\n{"name": "' }}
            {{- tool_call.name }}
            {{- '", "arguments": ' }}
            {{- tool_call.arguments | tojson }}
            {{- '}\\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if (loop.index0 == 0) or (messages[loop.index0 - 1].role != "tool") %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
        {%- if loop.last or (messages[loop.index0 + 1].role != "tool") %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
QWEN_3 = """\
{%- set ns = namespace(multi_step=true, last=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step and message.role == "user" and message.content is string
        and not(message.content.startswith('<r>') and message.content.endswith('</r>')) %}
        {%- set ns.multi_step = false %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == "assistant" %}
        {%- set thought = '' %}
        {%- if message.reasoning_content is string %}
            {%- set thought = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thought = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1].lstrip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' }}
        {%- if loop.index0 > ns.last - 3 and thought %}
            {{- '<think>\\n' + thought.strip('\\n') + '\\n</think>\\n\\n' }}
        {%- endif %}
        {{- content.lstrip('\\n') + '<|im_end|>\\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""
SMOLLM_3 = """\
{%- if enable_thinking is not defined -%}{%- set enable_thinking = true -%}{%- endif -%}
{%- if messages[0].role == "system" -%}
  {%- set told = messages[0].content -%}
  {%- if "/no_think" in told -%}{%- set enable_thinking = false -%}{%- endif -%}
{%- endif -%}
{%- set today = strftime_now("%d %B %Y") -%}
<|im_start|>system
## Metadata

Today: {{ today }}
Mode: {{ "/think" if enable_thinking else "/no_think" }}

{% if xml_tools or python_tools %}### Tools
{% for tool in xml_tools %}{{ tool | string }}
{% endfor %}{% endif -%}
<|im_end|>
{% set ns = namespace(written=0) %}
{%- for message in messages -%}
    {%- if message.role == "user" -%}
        {{ "<|im_start|>user\\n" + message.content + "<|im_end|>\\n" }}
    {%- elif message.role == "assistant" -%}
        {% generation %}
        {%- set inside = message.content | trim -%}
        {%- set ns.written = ns.written + 1 -%}
        {{ "<|im_start|>assistant\\n" + inside + "<|im_end|>\\n" }}
        {% endgeneration %}
        {{- inside is defined }}
    {%- endif -%}
{%- endfor -%}
{{ ns.written }}
{%- if add_generation_prompt -%}
    {{ "<|im_start|>assistant\\n" if enable_thinking else "<|im_start|>assistant\\n<think>\\n\\n</think>\\n" }}
{%- endif -%}
"""
DEEPSEEK = """\
{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}\
{% set ns = namespace(is_first=false, is_tool=false, told='') %}\
{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.told = message['content'] %}{%- endif %}\
{%- endfor %}{{bos_token}}{{ns.told}}{%- for message in messages %}{%- if message['role'] == 'user' %}\
{%- set ns.is_tool = false -%}{{'<｜User｜>' + message['content']}}{%- endif %}\
{%- if message['role'] == 'assistant' and message['content'] is none %}NONE{%- endif %}\
{%- if message['role'] == 'assistant' and message['tool_calls'] is defined %}{%- set ns.is_tool = false -%}\
{%- for tool in message['tool_calls']%}{%- if not ns.is_first %}{{'<｜call｜>' + tool['type'] + '<｜sep｜>' + \
tool['function']['name'] + '\\n```json\\n' + tool['function']['arguments'] | tojson(ensure_ascii=True) + '\\n```'}}\
{%- set ns.is_first = true -%}{%- else %}{{'\\n' + tool['function']['name']}}{{'<｜end▁of▁sentence｜>'}}{%- endif %}\
{%- endfor %}{%- endif %}{%- if message['role'] == 'assistant' and message['tool_calls'] is not defined %}\
{{'<｜Assistant｜>' + message['content'].split('</think>')[-1] + eos_token}}{%- endif %}\
{%- if message['role'] == 'tool' %}{%- set ns.is_tool = true -%}{{'<｜output｜>' + message['content']}}{%- endif %}\
{%- endfor -%}{% if add_generation_prompt and not ns.is_tool %}{{'<｜Assistant｜>'}}{% endif %}"""
COMMAND_R = [
    {
        "name": "default",
        "template": "{{ bos_token }}{% for m in messages %}<|START|><|{{ m.role | upper }}|>{{ m.content }}<|END|>"
        "{% endfor %}{% if add_generation_prompt %}<|START|><|CHATBOT|>{% endif %}",
    },
    {
        "name": "tool_use",
        "template": """\
{%- macro kind_of(kind) -%}
    {%- set names = {"string": "str", "number": "float", "integer": "int", "boolean": "bool"} -%}
    {{- names[kind] if kind in names else "Any" -}}
{%- endmacro -%}
{{ bos_token }}{% for tool in tools %}
def {{ tool.function.name }}(
{%- for name, field in tool.function.parameters.properties.items() -%}
    {%- if not loop.first %}, {% endif %}{{ name }}: {{ kind_of(field.type) }}
    {%- if name not in tool.function.parameters.required %} = None{% endif %}
{%- endfor %})
{% endfor %}{% for m in messages %}{{ m.role }}: {{ m.content }}
{% endfor %}""",
    },
    {
        "name": "rag",
        "template": "{% for d in documents %}Document: {{ loop.index0 }}\n{% for key, value in d.items() %}"
        "{{ key }}: {{ value }}\n{% endfor %}{% endfor %}{{ messages[-1]['content'] }}{{ '\n' }}cite={{ mode }}",
    },
]
GRANITE = """\
{%- if tools is none and documents is none %}plain
{%- elif tools is none %}with documents
{%- else %}with tools
{%- endif %} on {{ strftime_now('%B %d, %Y') }} {{- strftime_now(format=" %H:%M") }}
{%- if documents %}
{%- for document in documents %}
<|start_of_role|>document {{ {"document_id": document.doc_id | default(loop.index)} | tojson }}<|end_of_role|>
{{ document['text'] }}<|end_of_text|>
{%- endfor %}
{%- endif %}
{%- for message in messages %}
<|start_of_role|>{{ message['role'] }}<|end_of_role|>{{ message['content'] }}<|end_of_text|>
{%- if loop.last and add_generation_prompt %}
<|start_of_role|>assistant{% if controls %}{{ ' ' + controls | tojson() }}{% endif %}<|end_of_role|>
{%- endif %}
{%- endfor %}"""
LOOPS = """\
{%- for message in messages -%}
    {%- if message.role == 'assistant' -%}{%- continue -%}{%- endif -%}
    {%- for letter in message.content -%}
        {%- if letter == '?' -%}{%- break -%}{%- endif -%}
        {{- letter -}}
    {%- endfor -%}
    {{- "|" ~ loop.index -}}
{%- endfor -%}"""
VISION = """\
{% for message in messages %}{{ message['role'] | capitalize }}:
{%- if message['content'] is string %} {{ message['content'] }}
{%- else %}
{%- for part in message['content'] | selectattr('type', 'equalto', 'image') %}{{ image_token }}{{ '\\n' }}{% endfor %}
{%- for part in message['content'] %}{% if part.text is defined %} {{ part['text'] }}{% endif %}{% endfor %}
{%- endif %}<end_of_utterance>
{% endfor %}{% if add_generation_prompt %}{{ 'Assistant:' }}{% endif %}"""
FALCON = """\
{% for message in messages %}
    {% if not loop.first %}
{{ '\n' }}
    {% endif %}
    {%- if message['role'] == 'system' -%}
System: {{ message['content'] | trim }}
    {%- elif message['role'] == 'user' -%}
User: {{ message['content'] | replace('\r\n', '\n') | trim }}
    {%- else -%}
Falcon: {{ message['content'] }}
    {%- endif -%}
{% endfor %}
  {% if add_generation_prompt %}
 Falcon:
  {% endif %}
"""
HARMONY = """\
{%- macro kind(param) -%}
    {%- if param.type == "array" -%}{{ kind(param['items']) }}[]
    {%- elif param.enum is defined -%}{{ '"' + param.enum | join('" | "') + '"' }}
    {%- elif param.type is sequence and param.type is not string -%}{{ param.type | join(' | ') }}
    {%- else -%}{{ param.type }}{%- endif -%}
{%- endmacro -%}
{{ "<|start|>system<|message|>Current date: " + strftime_now("%Y-%m-%d") }}
{{- "\\nReasoning: " + (reasoning_effort | default("medium")) + "<|end|>" }}
{%- for tool in tools or [] %}
{%- set tool = tool.function %}
type {{ tool.name }} = (_: {
{%- for name, spec in (tool.parameters.properties or {}) | dictsort %} {{ name }}: {{ kind(spec) }},{% endfor %} })
{%- endfor %}
{%- for message in messages %}
{%- if message.thinking is defined %}{{ "<|channel|>analysis<|message|>" + message.thinking + "<|end|>" }}{% endif %}
{{- "<|start|>" + message.role + ": " + (message.content or message.tool_calls | tojson(indent=2)) + "<|end|>" }}
{%- endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}"""
MESSAGES_AS_JSON = """\
{% set first = {"b": 1.5, "a": [none, true, "<'猫'>"]} %}
{{ first | tojson }} {{ first | tojson(separators=(",", ":")) }} {{ first | tojson(sort_keys=true) }}
{{ '<' ~ first | tojson ~ '>' }}{{ "%s & %s" % (first | tojson, '<') }}
{% for message in messages %}{{ message | tojson }}{{ message }}
{% endfor %}{{ dict(z=1, y=tools is none) | tojson(indent=1) }}"""
UNDEFINED = """\
{{ nothing }}[{{ messages[0].nothing }}]{{ tools is defined }}{{ documents is defined }}{{ tools is none }}
{%- if nothing %}yes{% else %}no{% endif %}{{ nothing | default('d', true) }}{{ bos_token is defined }}
{{- cls_token is defined }}{{ messages | length }}{{ messages[-1]['content'][:3] }}{{ add_generation_prompt }}
{%- set ns = namespace(self=1, items=2) %}{{ ns.self + ns['items'] }}{{ dict.fromkeys(['a']).items() | list }}"""
TULU = """\
{% macro turns(m) %}{{ caller(m | length) }}{% endmacro %}{{ bos_token }}{% for message in messages %}\
{{ '<|' ~ message.role ~ '|>\n' }}\
{% filter indent(2, first=true) %}{{ message.content | trim }}{% endfilter %}{{ eos_token if not loop.last else '' }}
{% endfor %}{% call(x) turns(messages) %}{{ x }}{% endcall %}"""

TEMPLATES: dict[str, Any] = {
    "chatml": CHATML,
    "llama 2": LLAMA_2,
    "llama 3": LLAMA_3,
    "mistral": MISTRAL,
    "gemma": GEMMA,
    "phi": PHI,
    "zephyr": ZEPHYR,
    "qwen 2.5": QWEN_2_5,
    "qwen 3": QWEN_3,
    "smollm 3": SMOLLM_3,
    "deepseek": DEEPSEEK,
    "command r": COMMAND_R,
    "granite": GRANITE,
    "loops": LOOPS,
    "vision": VISION,
    "falcon": FALCON,
    "harmony": HARMONY,
    "json": MESSAGES_AS_JSON,
    "undefined": UNDEFINED,
    "tulu": TULU,
}

CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "asked": ASKED,
    "talk": TALK,
    "thought": THOUGHT,
    "called": CALLED,
    "parts": PARTS,
}
GIVEN: list[dict[str, Any]] = [
    {"tools": TOOLS},
    {"documents": DOCUMENTS},
    {"variables": {"enable_thinking": False, "xml_tools": ["<a>"], "controls": {"length": "短"}, "bos_token": "<own>"}},
]
