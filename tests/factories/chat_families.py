# ruff: noqa: E501
"""How sound model families write chats, end turns and name their ends, abbreviated; the TOK rules must stay quiet on all.

name → (template, control tokens, tokenizer's bos and eos, ends of generation_config.json, what ends a turn)
"""

from __future__ import annotations

from typing import NamedTuple


class Family(NamedTuple):
    template: str
    tokens: list[str]
    bos: str | None
    eos: str
    ends: list[str]
    turn_end: str | None


CHATML = """{%- if tools %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages[0]['role'] == 'system' %}{{- messages[0]['content'] }}{%- else %}{{- 'You are Qwen.' }}{%- endif %}
    {{- "\\n\\n# Tools\\n<tools>" }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools>\\n<tool_call>\\n{\\"name\\": <function-name>}\\n</tool_call><|im_end|>\\n" }}
{%- endif %}
{%- for message in messages %}
    {%- if (message.role == "user") or (message.role == "system") or (message.role == "assistant" and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>' + '\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""
QWEN3 = """{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.multi_step_tool and message.role == "user" and message.content is string and not(message.content.startswith('<tool_response>')) %}
        {%- set ns.multi_step_tool = false %}{%- set ns.last_query_index = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.content is string %}{%- set content = message.content %}{%- else %}{%- set content = '' %}{%- endif %}
    {%- if message.role == "assistant" and loop.index0 > ns.last_query_index and loop.last %}
        {{- '<|im_start|>' + message.role + '\\n<think>\\n\\n</think>\\n\\n' + content.lstrip('\\n') }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + content }}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}
{%- endif %}
"""
LLAMA3 = """{{- bos_token }}
{%- if not date_string is defined %}{%- if strftime_now is defined %}{%- set date_string = strftime_now("%d %b %Y") %}{%- endif %}{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}{%- set messages = messages[1:] %}
{%- else %}{%- set system_message = "" %}{%- endif %}
{{- "<|start_header_id|>system<|end_header_id|>\\n\\n" }}
{%- if tools is not none %}{{- "Environment: ipython\\n" }}{%- for t in tools %}{{- t | tojson(indent=4) }}{%- endfor %}{%- endif %}
{{- "Today Date: " + date_string + "\\n\\n" }}{{- system_message }}{{- "<|eot_id|>" }}
{%- for message in messages %}
    {%- if 'tool_calls' in message %}{{- "<|python_tag|>" }}{{- "<|eom_id|>" }}
    {%- else %}
        {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | trim + '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{%- endif %}
"""
GEMMA2 = """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}
{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}
{% if (message['role'] == 'assistant') %}{% set role = 'model' %}{% else %}{% set role = message['role'] %}{% endif %}
{{ '<start_of_turn>' + role + '\\n' + message['content'] | trim + '<end_of_turn>\\n' }}{% endfor %}
{% if add_generation_prompt %}{{'<start_of_turn>model\\n'}}{% endif %}"""
GEMMA3 = """{{ bos_token }}
{%- if messages[0]['role'] == 'system' -%}
    {%- if messages[0]['content'] is string -%}{%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- else -%}{%- set first_user_prefix = messages[0]['content'][0]['text'] + '\\n\\n' -%}{%- endif -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}{%- set first_user_prefix = "" -%}{%- set loop_messages = messages -%}{%- endif -%}
{%- for message in loop_messages -%}
    {%- if (message['role'] == 'assistant') -%}{%- set role = "model" -%}{%- else -%}{%- set role = message['role'] -%}{%- endif -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}{{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}
            {%- if item['type'] == 'image' -%}{{ '<start_of_image>' }}{%- elif item['type'] == 'text' -%}{{ item['text'] | trim }}{%- endif -%}
        {%- endfor -%}
    {%- else -%}{{ raise_exception("Invalid content type") }}{%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{'<start_of_turn>model\\n'}}{%- endif -%}
"""
MISTRAL = """{%- if messages[0]["role"] == "system" %}{%- set system_message = messages[0]["content"] %}{%- set loop_messages = messages[1:] %}
{%- else %}{%- set loop_messages = messages %}{%- endif %}
{%- if not tools is defined %}{%- set tools = none %}{%- endif %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if tools is not none and loop.last %}{{- "[AVAILABLE_TOOLS] [" }}{%- for tool in tools %}{{- tool | tojson }}{%- endfor %}{{- "[/AVAILABLE_TOOLS]" }}{%- endif %}
        {%- if loop.last and system_message is defined %}{{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}{{- "[INST] " + message["content"] + "[/INST]" }}{%- endif %}
    {%- elif message["role"] == "assistant" %}{{- " " + message["content"]|trim + eos_token}}
    {%- else %}{{- raise_exception("Only user and assistant roles are supported") }}{%- endif %}
{%- endfor %}
"""
LLAMA2 = """{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}
{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}
{% for message in loop_messages %}
{% if loop.index0 == 0 and system_message != false %}{% set content = '<<SYS>>\\n' + system_message + '\\n<</SYS>>\\n\\n' + message['content'] %}
{% else %}{% set content = message['content'] %}{% endif %}
{% if message['role'] == 'user' %}{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}
{% elif message['role'] == 'assistant' %}{{ ' '  + content.strip() + ' ' + eos_token }}{% endif %}{% endfor %}"""
DEEPSEEK = """{% if not add_generation_prompt is defined %}{% set add_generation_prompt = false %}{% endif %}
{% set ns = namespace(is_first=false, is_tool=false, system_prompt='') %}
{%- for message in messages %}{%- if message['role'] == 'system' %}{% set ns.system_prompt = message['content'] %}{%- endif %}{%- endfor %}
{{bos_token}}{{ns.system_prompt}}{%- for message in messages %}
{%- if message['role'] == 'user' %}{{'<｜User｜>' + message['content']}}{%- endif %}
{%- if message['role'] == 'assistant' and message['content'] is none %}{{'<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>'}}{%- endif %}
{%- if message['role'] == 'assistant' and message['content'] is not none %}{%- set content = message['content'] %}
{%- if '</think>' in content %}{% set content = content.split('</think>')[-1] %}{% endif %}{{'<｜Assistant｜>' + content + '<｜end▁of▁sentence｜>'}}{%- endif %}
{%- endfor -%}{% if add_generation_prompt %}{{'<｜Assistant｜>'}}{% endif %}"""
PHI3 = """{% for message in messages %}{% if message['role'] == 'system' %}{{'<|system|>\\n' + message['content'] + '<|end|>\\n'}}
{% elif message['role'] == 'user' %}{{'<|user|>\\n' + message['content'] + '<|end|>\\n'}}
{% elif message['role'] == 'assistant' %}{{'<|assistant|>\\n' + message['content'] + '<|end|>\\n'}}{% endif %}{% endfor %}
{% if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% else %}{{ eos_token }}{% endif %}"""
PHI4 = """{% for message in messages %}{% if (message['role'] == 'system') %}{{'<|im_start|>system<|im_sep|>' + message['content'] + '<|im_end|>'}}
{% elif (message['role'] == 'user') %}{{'<|im_start|>user<|im_sep|>' + message['content'] + '<|im_end|>'}}
{% elif (message['role'] == 'assistant') %}{{'<|im_start|>assistant<|im_sep|>' + message['content'] + '<|im_end|>'}}{% endif %}{% endfor %}
{% if add_generation_prompt %}{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}"""
GPT_OSS = """{%- macro render_tools(tools) %}{%- for tool in tools %}{{- "type " + tool.function.name + " = (_: {\\n" }}
{%- for name, spec in tool.function.parameters.properties.items() %}{{- name + ": " + spec.type }}{%- endfor %}{%- endfor %}{%- endmacro %}
{{- "<|start|>system<|message|>Knowledge cutoff: 2024-06\\nCurrent date: " + strftime_now("%Y-%m-%d") + "<|end|>" }}
{%- if messages[0].role == "developer" or messages[0].role == "system" %}
    {{- "<|start|>developer<|message|>" + messages[0].content + "<|end|>" }}{%- set loop_messages = messages[1:] %}
{%- else %}{%- set loop_messages = messages %}{%- endif %}
{%- if tools %}{{- render_tools(tools) }}{%- endif %}
{%- for message in loop_messages -%}
    {%- if message.role == 'assistant' -%}
        {%- if "tool_calls" in message %}{{- "<|call|>" }}
        {%- elif loop.last and not add_generation_prompt %}{{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|return|>" }}
        {%- else %}{{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}{%- endif %}
    {%- elif message.role == 'user' -%}{{- "<|start|>user<|message|>" + message.content + "<|end|>" }}{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}"""
GLM = """[gMASK]<sop>
{%- macro visible_text(content) -%}{%- if content is string -%}{{- content }}
{%- elif content is iterable and content is not mapping -%}{%- for item in content -%}{%- if item is mapping and item.type == 'text' -%}{{- item.text }}{%- endif -%}{%- endfor -%}
{%- else -%}{{- content }}{%- endif -%}{%- endmacro -%}
{%- for m in messages %}
{%- if m.role == 'user' -%}<|user|>
{{ visible_text(m.content) }}
{%- elif m.role == 'assistant' -%}<|assistant|>
{{ '<think></think>' }}
{{ visible_text(m.content).strip() }}
{%- elif m.role == 'tool' -%}<|observation|>
{%- elif m.role == 'system' -%}<|system|>
{{ visible_text(m.content) }}{%- endif -%}{%- endfor -%}
{%- if add_generation_prompt -%}<|assistant|>{%- endif -%}"""
ZEPHYR = """{% for message in messages %}
{% if message['role'] == 'user' %}
{{ '<|user|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'system' %}
{{ '<|system|>\\n' + message['content'] + eos_token }}
{% elif message['role'] == 'assistant' %}
{{ '<|assistant|>\\n'  + message['content'] + eos_token }}
{% endif %}
{% if loop.last and add_generation_prompt %}
{{ '<|assistant|>' }}
{% endif %}
{% endfor %}"""
OLMO = """{{ bos_token }}{% for message in messages %}{% if message['role'] == 'system' %}{{ '<|system|>\\n' + message['content'] + '\\n' }}
{% elif message['role'] == 'user' %}{{ '<|user|>\\n' + message['content'] + '\\n' }}
{% elif message['role'] == 'assistant' %}{% if not loop.last %}{{ '<|assistant|>\\n'  + message['content'] + eos_token + '\\n' }}
{% else %}{{ '<|assistant|>\\n'  + message['content'] + eos_token }}{% endif %}{% endif %}
{% if loop.last and add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}{% endfor %}"""
VICUNA = """{% for m in messages %}{% if m.role == 'user' %}USER: {{ m.content }} {% elif m.role == 'assistant' %}ASSISTANT: {{ m.content }}{{ eos_token }}
{% else %}{{ m.content }} {% endif %}{% endfor %}{% if add_generation_prompt %}ASSISTANT:{% endif %}"""
KIMI = """{%- for message in messages -%}
{%- if message['role'] == 'user' -%}<|im_user|>user<|im_middle|>{%- elif message['role'] == 'assistant' -%}<|im_assistant|>assistant<|im_middle|>
{%- else -%}<|im_system|>system<|im_middle|>{%- endif -%}
{%- if message['content'] is string -%}{{ message['content'] }}<|im_end|>{%- endif -%}{%- endfor -%}
{%- if add_generation_prompt -%}<|im_assistant|>assistant<|im_middle|>{%- endif -%}"""
SMOLLM3 = """{%- for message in messages -%}{%- if message.role == 'assistant' -%}
{% generation %}{{ '<|im_start|>assistant\\n' + message.content + '<|im_end|>\\n' }}{% endgeneration %}
{%- else -%}{{ '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}{%- endif -%}
{%- if loop.index > 100 -%}{% break %}{%- endif -%}{%- endfor -%}
{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""
LLAVA = """{% for message in messages %}{% if message['role'] != 'system' %}{{ message['role'].upper() + ': '}}{% endif %}
{% for content in message['content'] | selectattr('type', 'equalto', 'image') %}{{ '<image>\\n' }}{% endfor %}
{% for content in message['content'] | selectattr('type', 'equalto', 'text') %}{{ content['text'] + eos_token }}{% endfor %}{% endfor %}
{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}"""
BAICHUAN2 = """{% for m in messages %}{% if m.role == 'user' %}{{ '<reserved_106>' + m.content }}
{%- elif m.role == 'assistant' %}{{ '<reserved_107>' + m.content }}{% else %}{{ m.content }}{% endif %}{% endfor %}
{%- if add_generation_prompt %}<reserved_107>{% endif %}"""
NEMOTRON = """{{ '<extra_id_0>System\\n' }}{% for m in messages %}
{%- if m.role == 'user' %}{{ '\\n<extra_id_1>User\\n' + m.content + '\\n<extra_id_1>Assistant\\n' }}
{%- else %}{{ m.content }}{% endif %}{% endfor %}"""
STABLELM = """{% for m in messages %}{{ '<|' + m.role + '|>\\n' + m.content + '<|endoftext|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif %}"""
GRANITE = """{%- for m in messages %}{{ '<|start_of_role|>' + m.role + '<|end_of_role|>' + m.content + '<|end_of_text|>\\n' }}
{%- if loop.last and add_generation_prompt %}{{ '<|start_of_role|>assistant<|end_of_role|>' }}{% endif %}{% endfor %}"""
INTERNLM2 = """{{ bos_token }}{% for m in messages %}{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{% endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"""

IM = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LLAMA = [
    "<|begin_of_text|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eom_id|>",
    "<|python_tag|>",
]
GEMMA = ["<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>", "<start_of_image>"]
S = ["<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"]
DEEP = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"]
FAMILIES: dict[str, Family] = {
    "qwen2.5": Family(CHATML, IM, None, "<|im_end|>", ["<|im_end|>", "<|endoftext|>"], "<|im_end|>"),
    "qwen3": Family(QWEN3, IM, None, "<|im_end|>", ["<|im_end|>", "<|endoftext|>"], "<|im_end|>"),
    "llama-3.1": Family(LLAMA3, LLAMA, LLAMA[0], "<|eot_id|>", LLAMA[1:3], "<|eot_id|>"),
    "gemma-2": Family(GEMMA2, GEMMA, "<bos>", "<eos>", ["<eos>", "<end_of_turn>"], "<end_of_turn>"),
    "gemma-3": Family(GEMMA3, GEMMA, "<bos>", "<eos>", ["<eos>", "<end_of_turn>"], "<end_of_turn>"),
    "mistral": Family(MISTRAL, S, "<s>", "</s>", ["</s>"], "</s>"),
    "llama-2": Family(LLAMA2, S[:2], "<s>", "</s>", ["</s>"], "</s>"),
    "deepseek-v3": Family(DEEPSEEK, [*DEEP, "<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>"], DEEP[0], DEEP[1], DEEP[1:2], DEEP[1]),
    "deepseek-r1-distill": Family(DEEPSEEK, DEEP, DEEP[0], DEEP[1], DEEP[1:2], DEEP[1]),
    "phi-3": Family(
        PHI3, ["<s>", "<|endoftext|>", "<|assistant|>", "<|end|>", "<|user|>", "<|system|>"], "<s>", "<|endoftext|>",
        ["<|endoftext|>", "<|assistant|>", "<|end|>"], "<|end|>",
    ),
    "phi-4": Family(PHI4, [*IM, "<|im_sep|>"], IM[0], "<|im_end|>", ["<|im_end|>"], "<|im_end|>"),
    "gpt-oss": Family(
        GPT_OSS, ["<|startoftext|>", "<|endoftext|>", "<|return|>", "<|start|>", "<|message|>", "<|channel|>", "<|end|>", "<|call|>"],
        "<|startoftext|>", "<|return|>", ["<|return|>", "<|endoftext|>", "<|call|>"], "<|return|>",
    ),
    "glm-4.5": Family(
        GLM, ["<|endoftext|>", "[gMASK]", "<sop>", "<|user|>", "<|assistant|>", "<|system|>", "<|observation|>"], None,
        "<|endoftext|>", ["<|endoftext|>", "<|user|>", "<|observation|>"], "<|user|>",
    ),
    "zephyr": Family(ZEPHYR, ["<s>", "</s>"], "<s>", "</s>", ["</s>"], "</s>"),
    "olmo-2": Family(OLMO, ["<|endoftext|>", "<|pad|>"], IM[0], "<|endoftext|>", ["<|endoftext|>"], "<|endoftext|>"),
    "vicuna": Family(VICUNA, ["<s>", "</s>"], "<s>", "</s>", ["</s>"], "</s>"),
    "kimi-k2": Family(
        KIMI, ["[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>", "<|im_middle|>", "<|im_system|>"], "[BOS]",
        "[EOS]", ["<|im_end|>"], "<|im_end|>",
    ),
    "smollm3": Family(SMOLLM3, IM, None, "<|im_end|>", ["<|im_end|>"], "<|im_end|>"),
    "baichuan2": Family(BAICHUAN2, ["<s>", "</s>", "<reserved_106>", "<reserved_107>"], "<s>", "</s>", ["</s>"], None),
    "nemotron": Family(
        NEMOTRON, ["<s>", "</s>", "<extra_id_0>", "<extra_id_1>"], "<s>", "</s>", ["</s>", "<extra_id_1>"], "<extra_id_1>",
    ),
    "granite": Family(
        GRANITE, ["<|end_of_text|>", "<|start_of_role|>", "<|end_of_role|>"], "<|end_of_text|>", "<|end_of_text|>",
        ["<|end_of_text|>"], "<|end_of_text|>",
    ),
    "stablelm": Family(STABLELM, ["<|endoftext|>"], "<|endoftext|>", "<|endoftext|>", ["<|endoftext|>"], "<|endoftext|>"),
    "internlm2": Family(INTERNLM2, ["<s>", "</s>", *IM[1:]], "<s>", "</s>", ["</s>", "<|im_end|>"], "<|im_end|>"),
    "llava": Family(LLAVA, ["<s>", "</s>", "<image>"], "<s>", "</s>", ["</s>"], "</s>"),
}  # fmt: skip
